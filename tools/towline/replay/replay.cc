#include "replay/replay.h"

#include <fmt/format.h>
#include <towline/limits.h>

#include <algorithm>
#include <map>

#include "failure.h"
#include "json_output.h"
#include "process.h"
#include "replay/spill.h"
#include "replay/summary.h"
#include "streams.h"
#include "units.h"

namespace tool::replay {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kStartsWithin{60'000};

// Pools are touched when they are made: fail here before the machine swaps or kills processes.
void check_memory(const ReplayOptions& options, uint32_t largest_tokens) {
  const Setup& setup = options.setup;
  const CacheShape shape = shape_of(setup);
  (void)make_layout(shape, setup.prefill_tp, 0, setup.memory_bytes, largest_tokens, "prefill");
  if (options.role == Role::kBoth) {
    (void)make_layout(shape, setup.decode_tp, 0, setup.memory_bytes, largest_tokens, "decode");
  }
  const auto side = [&](uint32_t ranks) {
    return setup.memory_bytes != 0 ? setup.memory_bytes : default_memory_bytes(shape, ranks, largest_tokens);
  };
  uint64_t wanted = side(setup.prefill_tp);
  if (options.role == Role::kBoth) wanted += side(setup.decode_tp);
  const uint64_t available = towline_memory_available();
  if (wanted < available / 10 * 9) return;
  throw Failure{
      fmt::format("the pools would take {}, and this machine has {} to give. The largest request has {} "
                  "tokens of {}: fewer --layers "
                  "or --requests make it smaller",
                  format_size(static_cast<double>(wanted)), format_size(static_cast<double>(available)),
                  format_count(largest_tokens), format_size(static_cast<double>(shape.bytes_per_token())))};
}

class Replay {
 public:
  Replay(const ReplayOptions& options, const CommonOptions& common)
      : options_(options), bar_(common.errors, "replay"), common_(common) {}

  json run() {
    start();
    watch();
    crew_.finish();
    bar_.clear();
    return summarise(options_.setup, reports_);
  }

 private:
  void start() {
    std::vector<std::pair<std::string, std::string>> environment;
    if (!options_.faults.empty()) environment.emplace_back("TOWLINE_FAULTS", options_.faults);
    const std::string elsewhere =
        options_.role == Role::kDecode ? own_address_towards("--connect", options_.connect) : "";
    const std::string listen = options_.listen.empty() ? elsewhere : options_.listen;
    const auto configuration = [&](uint32_t rank, const char* side, uint32_t ranks_before) {
      return json{{"setup", options_.setup},
                  {"rank", rank},
                  {"listen", listen.empty() ? local_address(side, rank)
                                            : address_of_rank("--listen", listen, ranks_before + rank)}};
    };
    if (options_.role != Role::kDecode) {
      for (uint32_t rank = 0; rank < options_.setup.prefill_tp; ++rank) {
        prefill_.push_back(&crew_.start(fmt::format("prefill rank {}", rank), "replay-prefill",
                                        configuration(rank, "prefill", 0), environment));
      }
    }
    if (options_.role != Role::kPrefill) {
      for (uint32_t rank = 0; rank < options_.setup.decode_tp; ++rank) {
        decode_.push_back(&crew_.start(fmt::format("decode rank {}", rank), "replay-decode",
                                       configuration(rank, "decode", static_cast<uint32_t>(prefill_.size())),
                                       environment));
      }
    }
    json addresses = json::array();
    for (Child* child : prefill_)
      addresses.push_back(crew_.expect(*child, "address", kStartsWithin).at("address"));
    for (Child* child : prefill_) child->channel().send({{"start", addresses}});
    const std::string leader =
        options_.role == Role::kDecode ? options_.connect : addresses.at(0).get<std::string>();
    for (Child* child : decode_) child->channel().send({{"start", leader}});
    if (options_.role == Role::kPrefill) {
      tell(common_.errors.stream(),
           fmt::format(
               "waiting for the other side: towline replay --role decode --connect {} --decode-tp {}\n",
               leader, options_.setup.decode_tp));
    }
  }

  // Runs until every rank has reported its result.
  void watch() {
    while (reports_.prefill.size() + reports_.decode.size() < crew_.children().size()) {
      const auto [child, message] = crew_.receive(milliseconds{1000});
      if (child == nullptr) continue;
      const bool prefill = std::ranges::find(prefill_, child) != prefill_.end();
      if (message.contains("plan") && options_.role == Role::kDecode) {
        options_.setup = message.at("plan").at("setup").get<Setup>();
      } else if (message.contains("progress")) {
        show_progress(child, prefill, message);
      } else if (message.contains("finished") && ++finished_ == decode_.size()) {
        // All at the same time, like their transfers.
        for (Child* decode : decode_) decode->channel().send({{"measure", true}});
      } else if (message.contains("result")) {
        (prefill ? reports_.prefill : reports_.decode).push_back(message.at("result"));
      }
    }
  }

  void show_progress(const Child* child, bool prefill, const json& message) {
    if (prefill != decode_.empty()) return;  // decode ranks report the progress
    progress_[child] = message;
    uint64_t requests = UINT64_MAX;
    double bytes = 0;
    for (const auto& [rank, latest] : progress_) {
      requests = std::min(requests, latest.at("progress").get<uint64_t>());
      bytes += latest.at("bytes").get<double>();
    }
    const auto total = message.value("total", options_.setup.requests);
    bar_.update(static_cast<double>(requests) / static_cast<double>(std::max<uint64_t>(total, 1)),
                fmt::format("{}/{} requests, {}", requests, total, format_size(bytes)));
  }

  ReplayOptions options_;
  ProgressBar bar_;
  const CommonOptions& common_;
  Crew crew_;
  std::vector<Child*> prefill_;
  std::vector<Child*> decode_;
  std::map<const Child*, json> progress_;
  size_t finished_ = 0;
  Reports reports_;
};

}  // namespace

void run_replay(const ReplayOptions& options, const CommonOptions& common) {
  check_setup(options.setup);
  ReplayOptions checked = options;
  if (options.role != Role::kDecode) {
    const TraceShape trace = shape_of(requests_of(options.setup));
    checked.setup.requests = trace.requests;
    check_memory(options, trace.largest_input_tokens);
    if (!common.json) {
      tell(common.errors.stream(),
           fmt::format("{} request{} of {}: {} tokens at the median, {} on average, {} at most\n",
                       trace.requests, trace.requests == 1 ? "" : "s",
                       options.setup.trace.empty() ? "a generated trace" : options.setup.trace,
                       format_count(static_cast<uint64_t>(trace.median_input_tokens)),
                       format_count(static_cast<uint64_t>(trace.mean_input_tokens)),
                       format_count(trace.largest_input_tokens)));
    }
  }
  const MissingFolders made(options.setup.spill);
  const json summary = Replay{checked, common}.run();
  if (common.json) {
    print_json(summary, JsonLayout::kIndented);
  } else {
    fmt::print("{}", render_summary(summary, common.output));
  }
}

}  // namespace tool::replay
