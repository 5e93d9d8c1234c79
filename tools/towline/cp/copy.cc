#include "cp/copy.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <set>
#include <string_view>
#include <thread>
#include <towline/pace.hpp>
#include <towline/towline.hpp>

#include "buffer.h"
#include "cp/checksum.h"
#include "cp/journal.h"
#include "cp/place.h"
#include "failure.h"
#include "signals.h"
#include "storage_schemes.h"
#include "units.h"

namespace tool::cp {

namespace {

using nlohmann::json;
using std::chrono::steady_clock;

constexpr uint64_t kLeastPiece = 4096;              // each is a post, and a line of the journal
constexpr uint64_t kStepBytes = uint64_t{1} << 20;  // what the journal counts by; a post has one or more
constexpr uint64_t kPartBytes = uint64_t{8} << 20;  // part size of objects, as agent_options sets it
constexpr uint64_t kVerifyBytes = uint64_t{8} << 20;
constexpr size_t kPostsInFlight = 2;  // one completes while the next is in flight
// A post takes about this long, since what is in flight is lost with the connection.
constexpr double kPostSeconds = 1;
constexpr auto kLook = std::chrono::milliseconds{50};

towline::AgentOptions agent_options(const CopyOptions& options, const Place& source,
                                    const Place& destination) {
  towline::AgentOptions agent;
  agent.listen = "none";
  agent.default_timeout = options.timeout;
  agent.config = plugins_for({source.uri, destination.uri});
  // Each piece of an object begins where a part begins.
  const auto timeout = std::chrono::ceil<std::chrono::milliseconds>(options.timeout).count();
  std::set<std::string_view> backends;
  for (const Place* const place : {&source, &destination}) {
    const StorageScheme* const scheme = scheme_of(place->uri);
    if (scheme == nullptr || !scheme->objects || !backends.insert(scheme->backend).second) continue;
    agent.config += fmt::format("[tuning.{}]\npart = \"8MiB\"\ncontrol_timeout = \"{}ms\"\n", scheme->backend,
                                std::max<int64_t>(timeout, 1));
  }
  return agent;
}

// The steps of a copy, of which the journal remembers which are done.
struct Cut {
  uint64_t bytes;
  uint64_t step_bytes;
  [[nodiscard]] uint64_t steps() const { return (bytes + step_bytes - 1) / step_bytes; }
  [[nodiscard]] uint64_t begin(uint64_t step) const { return step * step_bytes; }
  [[nodiscard]] uint64_t length(uint64_t first, uint64_t steps) const {
    return std::min(steps * step_bytes, bytes - begin(first));
  }
};

class Copier {
 public:
  Copier(const CopyOptions& options, const Report& report)
      : options_(options),
        report_(report),
        source_place_(parse_place(options.source)),
        destination_place_(parse_place(options.destination)),
        agent_(fmt::format("cp-{}", getpid()), agent_options(options, source_place_, destination_place_)) {
    if (source_place_.is_peer() && destination_place_.is_peer())
      throw Failure{"both places are peers: one of them must be storage of this machine"};
    if (options.piece_bytes < kLeastPiece)
      throw Failure{fmt::format("--piece {}: at least {} bytes, since each piece is one transfer",
                                options.piece_bytes, kLeastPiece)};
    if (destination_place_.is_object() && options.piece_bytes % kPartBytes != 0)
      throw Failure{fmt::format("--piece {}: pieces of an object are multiples of {}", options.piece_bytes,
                                kPartBytes)};
    if (destination_place_.is_object() && options.seek != 0)
      throw Failure{fmt::format("--seek {}: an object is written whole", options.seek)};
  }

  CopySummary run();

 private:
  struct Flight {
    uint64_t first;  // step
    uint64_t steps;
    steady_clock::time_point began;
    towline::Post post;
  };

  [[nodiscard]] std::string state_path() const;
  [[nodiscard]] bool may_go_on(const Journal& journal) const;
  [[nodiscard]] bool within_one_file() const;
  void check_places() const;
  void copy_nothing();
  void check_source() const;
  void copy_pieces(Journal& journal);
  [[nodiscard]] uint64_t steps_from(uint64_t first, const Journal& journal) const;
  void start(uint64_t first, uint64_t steps);
  void suit_pace(const Flight& flight);
  void finish(Journal& journal);
  [[nodiscard]] const char* advice(bool timed_out) const;
  [[nodiscard]] std::chrono::nanoseconds piece_timeout() const;
  void show(uint64_t done_bytes) const;
  void verify();
  [[nodiscard]] towline::Plan plan_of(uint64_t begin, uint64_t bytes) const;

  const CopyOptions& options_;
  const Report& report_;
  const Place source_place_;
  const Place destination_place_;
  std::optional<Interruption> interruption_;  // for copies that leave parts at a server when they are killed
  const towline::Agent agent_;
  std::optional<OpenPlace> source_;
  std::optional<OpenPlace> destination_;
  Cut cut_{};
  std::deque<Flight> flights_;
  uint64_t post_steps_ = 1;
  steady_clock::time_point started_{};
  uint64_t finished_bytes_ = 0;  // by this run
  CopySummary summary_;
};

// Beside the file that is written. For copies to a peer: in the user's state folder, one journal for each
// region of each incarnation, independent of the peer's name and of the source, so that the next copy into
// the region replaces the journal. An object has none: it is always uploaded from the start.
std::string Copier::state_path() const {
  if (options_.state) return *options_.state;
  if (destination_place_.is_peer()) return journal_of_memory(options_.state_home, destination_->version());
  return destination_place_.path.empty() ? std::string{} : destination_place_.path + ".towline-cp";
}

// True if the bytes of an earlier run are still there: the file has not been emptied or cut since.
bool Copier::may_go_on(const Journal& journal) const {
  if (options_.restart) return false;
  if (destination_place_.is_peer()) return true;  // its incarnation is part of what the copy is
  if (destination_place_.path.empty()) return false;
  uint64_t steps = cut_.steps();
  while (steps != 0 && !journal.done(steps - 1)) --steps;
  const uint64_t written = steps != 0 ? cut_.length(0, steps) : 0;
  const towline::StorageInfo there = agent_.query_storage(destination_place_.uri);
  return there.exists != 0 && there.bytes >= options_.seek + written;
}

// Compares the files themselves, so names and links do not matter.
bool Copier::within_one_file() const {
  std::error_code none;
  return !source_place_.path.empty() && !destination_place_.path.empty() &&
         std::filesystem::equivalent(source_place_.path, destination_place_.path, none);
}

void Copier::check_places() const {
  const bool same =
      within_one_file() || (source_place_.is_object() && source_place_.text == destination_place_.text);
  const bool apart =
      options_.seek >= options_.skip + cut_.bytes || options_.skip >= options_.seek + cut_.bytes;
  if (same && (!apart || cut_.bytes == 0))
    throw Failure{fmt::format("{} is copied onto itself{}", source_place_.text,
                              source_place_.text == destination_place_.text
                                  ? ""
                                  : fmt::format(": {} is the same file", destination_place_.text))};
}

// An empty source has no pieces, but the destination file is still created.
void Copier::copy_nothing() {
  if (destination_place_.is_object())
    throw Failure{fmt::format("{} is empty: empty objects are not written", source_place_.text)};
  if (destination_place_.is_peer()) return;
  const auto mode = options_.seek != 0 ? std::ios::app : std::ios::trunc;
  if (!std::ofstream(destination_place_.path, mode))
    throw Failure{fmt::format("{}: {}", destination_place_.path, std::strerror(errno))};
  if (options_.verify) summary_.checksum = fmt::format("{:016x}", Checksum().value());
}

// A copy is wrong if its parts are from different versions of the source.
void Copier::check_source() const {
  if (source_place_.is_peer() || within_one_file()) return;
  if (OpenPlace::version(agent_, source_place_) != source_->version())
    throw Failure{
        fmt::format("{} has changed while it was copied: {} has some of the old bytes and some of "
                    "the new; run the same command again to copy all of it anew",
                    source_place_.text, destination_place_.text)};
}

CopySummary Copier::run() {
  const towline::Deadline deadline = options_.timeout;
  source_ = OpenPlace::source(agent_, source_place_, deadline);
  if (source_->bytes() == 0 && options_.skip == 0 && options_.bytes == 0) {
    check_places();
    copy_nothing();
    return summary_;
  }
  if (options_.skip != 0 && options_.skip >= source_->bytes())
    throw Failure{
        fmt::format("--skip {}: {} has {} bytes", options_.skip, source_place_.text, source_->bytes())};
  const uint64_t there = source_->bytes() - options_.skip;
  if (options_.bytes > there)
    throw Failure{
        fmt::format("--bytes {}: {} has {} from there on", options_.bytes, source_place_.text, there)};
  // An object is not resumed, and each of its posts must be whole parts.
  cut_ = {options_.bytes != 0 ? options_.bytes : there,
          destination_place_.is_object() ? options_.piece_bytes : std::min(options_.piece_bytes, kStepBytes)};
  check_places();
  std::string destination_version;
  if (destination_place_.is_peer()) {
    destination_ =
        OpenPlace::destination(agent_, destination_place_, options_.seek + cut_.bytes, false, deadline);
    destination_version = destination_->version();
  }
  const json which = {{"towline_cp", 2},
                      {"source", source_place_.text},
                      {"source_version", source_->version()},
                      {"destination", destination_place_.is_peer() ? "" : destination_place_.text},
                      {"destination_version", destination_version},
                      {"skip", options_.skip},
                      {"seek", options_.seek},
                      {"bytes", cut_.bytes},
                      {"piece_bytes", cut_.step_bytes}};
  Journal journal(state_path(), which, cut_.steps());
  if (!may_go_on(journal)) journal.forget();
  const bool goes_on = journal.done_count() != 0;
  if (destination_place_.is_object()) interruption_.emplace();
  if (!destination_)
    destination_ = OpenPlace::destination(agent_, destination_place_, options_.seek + cut_.bytes,
                                          options_.direct, deadline);
  (void)plan_of(0, cut_.length(0, 1));
  journal.open();
  // Last: the old contents stay until it is certain that the copy can begin.
  if (!goes_on && options_.seek == 0 && !within_one_file()) OpenPlace::empty(destination_place_);
  summary_.bytes = cut_.bytes;
  started_ = steady_clock::now();
  towline::set_limit(agent_, options_.rate);
  copy_pieces(journal);
  towline::set_limit(agent_, 0);
  check_source();
  if (options_.sync || destination_place_.path.empty()) destination_->commit();
  interruption_.reset();
  summary_.seconds = seconds_since(started_);
  if (options_.verify) verify();
  journal.remove();
  return summary_;
}

towline::Plan Copier::plan_of(uint64_t begin, uint64_t bytes) const {
  const towline::BlockList from = source_->list(agent_, options_.skip + begin, bytes);
  const towline::BlockList to = destination_->list(agent_, options_.seek + begin, bytes);
  return agent_.plan(from, to, {.timeout = piece_timeout(), .backend = options_.backend});
}

void Copier::copy_pieces(Journal& journal) try {
  for (uint64_t step = 0; step < cut_.steps();) {
    if (journal.done(step)) {
      summary_.resumed_bytes += cut_.length(step++, 1);
      continue;
    }
    const uint64_t steps = steps_from(step, journal);
    start(step, steps);
    step += steps;
    if (flights_.size() >= kPostsInFlight) finish(journal);
  }
  while (!flights_.empty()) finish(journal);
} catch (const towline::Error& error) {
  throw Failure{fmt::format("{}; {}", error.what(), advice(error.code() == towline::Status::kTimedOut))};
}

uint64_t Copier::steps_from(uint64_t first, const Journal& journal) const {
  uint64_t end = first + 1;
  while (end < cut_.steps() && end - first < post_steps_ && !journal.done(end)) ++end;
  return end - first;
}

void Copier::suit_pace(const Flight& flight) {
  const double steps = static_cast<double>(flight.steps) * kPostSeconds / seconds_since(flight.began);
  const uint64_t most =
      std::min(std::max(options_.piece_bytes / cut_.step_bytes, uint64_t{1}), 4 * post_steps_);
  post_steps_ =
      steps < static_cast<double>(most) ? std::max<uint64_t>(static_cast<uint64_t>(steps), 1) : most;
}

void Copier::start(uint64_t first, uint64_t steps) {
  const auto began = steady_clock::now();
  const towline::Plan plan = plan_of(cut_.begin(first), cut_.length(first, steps));
  if (summary_.route.empty()) {
    const json route = json::parse(plan.route(), nullptr, false);
    summary_.route = route.value("why", route.value("backend", ""));
  }
  const auto until = began + options_.timeout;
  towline::Post post = plan.post();
  while (post.poll() == towline::Status::kAgain && steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
    post = plan.post();
  }
  if (!post.accepted()) {
    const towline::Status posted = post.poll();
    throw Failure{fmt::format("bytes from {} on of {} were not accepted: {}; {}",
                              options_.skip + cut_.begin(first), source_place_.text,
                              towline::status_text(posted), advice(posted == towline::Status::kTimedOut))};
  }
  flights_.push_back({first, steps, began, std::move(post)});
}

// An object is uploaded whole or not at all.
const char* Copier::advice(bool timed_out) const {
  if (destination_place_.is_object())
    return timed_out ? "--timeout gives it more time; the same command uploads it anew"
                     : "run the same command again to upload it anew";
  if (timed_out)
    return "--timeout gives each piece more time and --piece makes them smaller; the same command goes on";
  return source_place_.is_peer() || destination_place_.is_peer()
             ? "run the same command again to go on, or, if the peer was restarted, to copy all of it anew"
             : "run the same command again to go on";
}

void Copier::finish(Journal& journal) {
  Flight& flight = flights_.front();
  const uint64_t begin = cut_.begin(flight.first);
  const uint64_t bytes = cut_.length(flight.first, flight.steps);
  towline::Status outcome = flight.post.poll();
  while (outcome == towline::Status::kInProgress || outcome == towline::Status::kNotYet) {
    if (interruption_) interruption_->check();
    outcome = flight.post.wait(kLook);
    uint64_t moved = 0;
    for (const Flight& one : flights_) moved += one.post.result().bytes;
    show(finished_bytes_ + moved);
  }
  if (outcome != towline::Status::kOk) {
    const towline::Result result = flight.post.result();
    std::string code;
    for (const auto& range : result.failures()) {
      if (range.vendor_code != 0) code = fmt::format(" ({})", vendor_code_text(range.vendor_code));
    }
    throw Failure{fmt::format("bytes {} to {} of {}, on their way to {}: {}{}; {}", options_.skip + begin,
                              options_.skip + begin + bytes, source_place_.text, destination_place_.text,
                              flight.post.error(), code, advice(outcome == towline::Status::kTimedOut))};
  }
  finished_bytes_ += bytes;
  // The next post is in flight meanwhile. The journal must not be newer than the bytes.
  if (options_.sync && !destination_place_.path.empty()) destination_->commit();
  journal.add(flight.first, flight.steps);
  suit_pace(flight);
  flights_.pop_front();
  show(finished_bytes_);
}

// Beside what the rate takes for it and for the piece that is in flight with it.
std::chrono::nanoseconds Copier::piece_timeout() const {
  if (options_.rate == 0) return options_.timeout;
  const auto pieces = static_cast<double>(kPostsInFlight * std::min(options_.piece_bytes, cut_.bytes));
  const std::chrono::duration<double> takes{std::min(pieces / static_cast<double>(options_.rate), 1e9)};
  return options_.timeout + std::chrono::ceil<std::chrono::nanoseconds>(takes);
}

void Copier::show(uint64_t done_bytes) const {
  const double seconds = seconds_since(started_);
  const double rate = seconds > 0 ? static_cast<double>(done_bytes) / seconds : 0;
  const uint64_t whole = summary_.resumed_bytes + done_bytes;
  report_(Phase::kCopy, static_cast<double>(whole) / static_cast<double>(cut_.bytes),
          fmt::format("{} of {}, {}", format_size(static_cast<double>(whole)),
                      format_size(static_cast<double>(cut_.bytes)), format_rate(rate)));
}

// Reads both sides and compares them, and their sums.
void Copier::verify() {
  const auto began = steady_clock::now();
  const uint64_t step = std::min(kVerifyBytes, cut_.bytes);
  Buffer memory(BufferKind::kShared, 2 * step);
  const towline::Region region = agent_.register_memory(towline::dram(memory.data(), memory.size()));
  Checksum sums[2];
  const auto read = [&](const OpenPlace& place, uint64_t at, uint64_t bytes, std::byte* into) {
    const towline::Transfer transfer =
        agent_.transfer(place.list(agent_, at, bytes), agent_.block_list(towline::Blocks::at(into, bytes)),
                        {.timeout = options_.timeout});
    towline::Status status = transfer.post();
    if (status == towline::Status::kInProgress) status = transfer.wait(towline::kForever);
    if (status != towline::Status::kOk)
      throw Failure{
          fmt::format("reading back bytes {} to {}: {}", at, at + bytes, towline::status_text(status))};
  };
  // Opened again, to check what a reader will find. A peer's memory is read as it is.
  std::optional<OpenPlace> written;
  if (!destination_place_.is_peer())
    written = OpenPlace::source(agent_, destination_place_, options_.timeout);
  const OpenPlace& there = written ? *written : *destination_;
  for (uint64_t at = 0; at < cut_.bytes; at += step) {
    const uint64_t bytes = std::min(step, cut_.bytes - at);
    read(*source_, options_.skip + at, bytes, memory.data());
    read(there, options_.seek + at, bytes, memory.data() + step);
    sums[0].add(memory.data(), bytes);
    sums[1].add(memory.data() + step, bytes);
    const auto differs = std::mismatch(memory.data(), memory.data() + bytes, memory.data() + step);
    if (differs.first != memory.data() + bytes)
      throw Failure{
          fmt::format("{} and {} differ at byte {} of the copy: the source may have changed meanwhile; "
                      "--restart copies everything anew",
                      source_place_.text, destination_place_.text,
                      at + static_cast<uint64_t>(differs.first - memory.data()))};
    report_(Phase::kVerify, static_cast<double>(at + bytes) / static_cast<double>(cut_.bytes),
            fmt::format("{} compared", format_size(static_cast<double>(at + bytes))));
  }
  if (sums[0].value() != sums[1].value()) throw Failure{"the checksums of both sides differ"};
  summary_.checksum = fmt::format("{:016x}", sums[0].value());
  summary_.verify_seconds = seconds_since(began);
}

}  // namespace

CopySummary copy(const CopyOptions& options, const Report& report) { return Copier(options, report).run(); }

json summary_json(const CopyOptions& options, const CopySummary& summary) {
  const uint64_t now = summary.bytes - summary.resumed_bytes;
  json result = {{"source", options.source},
                 {"destination", options.destination},
                 {"bytes", summary.bytes},
                 {"resumed_bytes", summary.resumed_bytes},
                 {"seconds", summary.seconds},
                 {"bytes_per_s", summary.seconds > 0 ? static_cast<double>(now) / summary.seconds : 0},
                 {"route", summary.route},
                 {"verified", !summary.checksum.empty()}};
  if (!summary.checksum.empty()) {
    result["checksum"] = summary.checksum;
    result["verify_seconds"] = summary.verify_seconds;
  }
  return result;
}

}  // namespace tool::cp
