// Copies bytes between storage and storage or a peer's memory, piece by piece.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace tool::cp {

inline constexpr uint64_t kDefaultPieceBytes = uint64_t{64} << 20;

struct CopyOptions {
  std::string source{};
  std::string destination{};
  uint64_t skip = 0;   // bytes of the source before those that are copied
  uint64_t seek = 0;   // bytes of the destination before those that are written
  uint64_t bytes = 0;  // 0: the whole source
  uint64_t piece_bytes = kDefaultPieceBytes;
  uint64_t rate = 0;                   // limit in bytes per second; 0: none
  std::optional<std::string> state{};  // path of the journal; empty text: none; by default beside a file
  std::string state_home{};            // for copies into a peer's memory, $XDG_STATE_HOME; empty: nowhere
  std::string backend{};               // towards the peer
  std::chrono::nanoseconds timeout = std::chrono::seconds{60};  // of each piece, and of connecting
  bool verify = false;
  bool restart = false;
  bool direct = false;
  bool sync = true;
};

struct CopySummary {
  uint64_t bytes = 0;
  uint64_t resumed_bytes = 0;  // included in `bytes`; copied by an earlier run
  double seconds = 0;          // copying
  double verify_seconds = 0;
  std::string route;     // "tcp then posix"
  std::string checksum;  // of both sides; empty: not verified
};

enum class Phase { kCopy, kVerify };
// Called from time to time; `text` is for people.
using Report = std::function<void(Phase phase, double share, const std::string& text)>;

// Throws Failure, saying what to do, or towline::Error.
CopySummary copy(const CopyOptions& options, const Report& report);

[[nodiscard]] nlohmann::json summary_json(const CopyOptions& options, const CopySummary& summary);

}  // namespace tool::cp
