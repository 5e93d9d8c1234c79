// Standard input, output and error, which may be open, closed, full or a pipe without a reader.
#pragma once

#include <cstdio>
#include <string_view>

namespace tool {

// If one of the three is closed, opens a descriptor there that can't be written to (or read from). Otherwise
// a later socket or file would get its number and receive the output. Call before anything is opened.
void fill_closed_streams();

// Writes progress messages, mostly to standard error. Never fails, even if the stream has no reader.
void tell(std::FILE* stream, std::string_view text) noexcept;

// Throws Failure unless the stream has accepted all output.
void finish_output(std::FILE* stream);

}  // namespace tool
