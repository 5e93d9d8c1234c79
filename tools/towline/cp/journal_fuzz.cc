// A journal is untrusted: parsing accepts any text, and marks no piece as done that the text does not name.
// Half of the inputs are parsed as they are, the other half as the lines of a journal of this copy.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "cp/journal.h"
#include "support/fuzz_accepted.h"

namespace {

constexpr uint64_t kPieces = 10;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const nlohmann::json copy = {{"towline_cp", 1}, {"bytes", 1000}};
  const std::string text(reinterpret_cast<const char*>(data), bytes);
  for (const std::string& journal : {text, copy.dump() + "\n" + text}) {
    std::istringstream lines(journal);
    const tool::cp::JournalText parsed = tool::cp::parse_journal(lines, copy, kPieces);
    if (parsed.done.size() != kPieces) std::abort();
    if (std::find(parsed.done.begin(), parsed.done.end(), true) != parsed.done.end())
      towline::fuzz::accepted();
    bool named = false;  // it or one before it, from which several are counted
    for (uint64_t piece = 0; piece < kPieces; ++piece) {
      named = named || journal.find(std::to_string(piece)) != std::string::npos;
      if (parsed.done[piece] && (parsed.of_another || !named)) std::abort();
    }
  }
  return 0;
}
