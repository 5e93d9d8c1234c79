// Standard input, output and error as a program finds them: open, closed, full or a pipe that nobody reads.
#pragma once

#include <cstdio>
#include <string_view>

namespace tool {

// Puts something that can't be written to (or read from) where one of the three is closed, so that no socket
// or file of ours takes its number and is written to instead. Call before anything is opened.
void fill_closed_streams();

// Writes what is told on the way, to standard error mostly. Nobody has to read it: never fails.
void tell(std::FILE* stream, std::string_view text) noexcept;

// Throws Failure unless all that was printed has been taken.
void finish_output(std::FILE* stream);

}  // namespace tool
