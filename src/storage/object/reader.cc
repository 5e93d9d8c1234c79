#include "storage/object/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/copy/copy.h"
#include "base/copy/crc32c.h"
#include "storage/object/checksum.h"
#include "storage/object/protocol.h"

namespace towline::object {

namespace {

constexpr size_t kReaderSegments = 512;
constexpr long kPreconditionFailed = 412;
constexpr const char* kReplaced = "the object was replaced while it was read";

// About as many as `bytes` of the plan are of.
uint64_t objects_within(const Prepared& prepared, uint64_t bytes) {
  const uint64_t each = prepared.plan->bytes / std::max<uint64_t>(prepared.objects.size(), 1);
  return std::max<uint64_t>(bytes / std::max<uint64_t>(each, 1), 1);
}

}  // namespace

Reader::Reader(Client& task_client, Job& job, uint64_t begin, uint64_t end)
    : Task(task_client),
      job_(job),
      cursor_(*job.prepared.plan, begin, end),
      segments_(kReaderSegments),
      objects_(objects_within(job.prepared, end - begin)),
      position_(begin),
      end_(end) {
  jobs.push_back(&job);
}

void Reader::start() {
  try {
    client.add_feeder(*this);  // room may be there already; else the client asks when there is
  } catch (const std::bad_alloc&) {
    stop(Status::kOutOfMemory, true);
  }
}

void Reader::stop(Status status, bool) {
  stopped_ = true;
  client.remove_feeder(*this);
  job_.failed(status, 0, position_, end_);
  for (Fetch& fetch : fetches_) {
    if (!fetch.under_way) continue;
    client.stop(fetch.call);
    fetch.under_way = false;
    job_.moved(fetch.done);
    job_.failed(status, 0, fetch.plan_begin + fetch.done, end_);
  }
  under_way_ = 0;
  over();
}

void Reader::end_if_over() {
  if (under_way_ != 0 || has_more()) return;
  client.remove_feeder(*this);
  stopped_ = true;
  over();
}

// ---- cutting

bool Reader::fill() {
  if (next_segment_ < segment_count_) return true;
  next_segment_ = 0;
  segment_count_ = cursor_.next(segments_.data(), segments_.size(), UINT64_MAX);
  return segment_count_ != 0;
}

void Reader::take(Fetch& fetch) {
  fetch.segments.clear();
  fetch.plan_begin = position_;
  const uint64_t region = segments_[next_segment_].remote_region;
  fetch.offset = segments_[next_segment_].remote;
  fetch.bytes = fetch.done = fetch.in_segment = 0;
  fetch.segment = 0;
  fetch.crc = 0;
  const uint64_t most = client.range_bytes(objects_, under_way_);
  while (next_segment_ < segment_count_ && fetch.bytes < most) {
    towline_segment& next = segments_[next_segment_];
    if (next.remote_region != region || next.remote != fetch.offset + fetch.bytes) break;
    fetch.segments.push_back(next);
    towline_segment& taken = fetch.segments.back();
    taken.length = std::min(next.length, most - fetch.bytes);
    fetch.bytes += taken.length;
    next.local += taken.length;
    next.remote += taken.length;
    next.length -= taken.length;
    if (next.length == 0) ++next_segment_;
  }
  position_ += fetch.bytes;
}

bool Reader::feed() {
  const uint64_t begin = position_;
  Fetch* fetch = nullptr;
  try {
    if (!stopped_ && position_ < job_.failed_from() && fill()) {
      if (free_.empty()) {
        free_.reserve(fetches_.size() + 1);
        free_.push_back(&fetches_.emplace_back());
      }
      fetch = free_.back();
      free_.pop_back();
      take(*fetch);
      fetch->under_way = true;
      ++under_way_;
      ask(*fetch);
    }
  } catch (const std::bad_alloc&) {
    if (fetch != nullptr && std::exchange(fetch->under_way, false)) --under_way_;
    job_.failed(Status::kOutOfMemory, 0, begin, end_);
  }
  end_if_over();
  return has_more();
}

// ---- one GET

void Reader::ask(Fetch& fetch) {
  const Object& object = object_of(fetch);
  Reading& reading = *job_.reading;
  Call& call = fetch.call;
  call.method = "GET";
  call.name = object.name();
  call.cost = fetch.bytes;
  call.urgent = job_.urgent;
  // Others tell their checksum unasked.
  const bool asks = reading.checks() && client.settings().kind == ServerKind::kS3;
  call.before = [&fetch, &object, &reading, asks] {
    fetch.call.headers.clear();
    fetch.whole = reading.checks() && !object.version().looked && !object.is_longer && fetch.offset == 0 &&
                  fetch.done == 0 && fetch.bytes == object.bytes();
    // Bytes that have come are not asked for again.
    if (!fetch.whole)
      fetch.call.headers.emplace_back(
          "range", fmt::format("bytes={}-{}", fetch.offset + fetch.done, fetch.offset + fetch.bytes - 1));
    if (asks) fetch.call.headers.emplace_back("x-amz-checksum-mode", "ENABLED");
    fetch.version = reading.wanted_version(object);
    if (!fetch.version.empty()) fetch.call.headers.emplace_back("if-match", fetch.version);
  };
  call.outdated = [&fetch, &object, &reading] { return reading.wanted_version(object) != fetch.version; };
  call.begins = [&fetch, this](const Answer& answer) { return begins(fetch, answer); };
  call.takes = [&fetch, this](std::span<const std::byte> bytes) { return takes(fetch, bytes); };
  call.check = [&fetch, this](const Answer& answer) { return check(fetch, answer); };
  call.done = [&fetch, this](const Answer& answer) { done(fetch, answer); };
  client.start(call);
}

void Reader::learn(const Answer& answer, uint64_t bytes) {
  Version whole = client.protocol().version_of(answer.headers);
  whole.bytes = bytes;
  job_.reading->learn(std::move(whole));
}

Verdict Reader::begins(Fetch& fetch, const Answer& answer) {
  Object& object = object_of(fetch);
  const uint64_t asked = fetch.offset + fetch.done;
  if (answer.http_status == 200) {
    const auto bytes = decode_number(header(answer.headers, "content-length"));
    if (fetch.whole && bytes && *bytes > fetch.bytes) {
      object.is_longer = true;
      return {Status::kProtocol, true, "the object is longer than its region"};
    }
    if (asked != 0 || !bytes || *bytes > fetch.bytes)
      return {Status::kProtocol, false, "the server takes no notice of ranges"};
    fetch.on_server = *bytes;
    if (fetch.whole) learn(answer, *bytes);
  } else {
    const auto range = decode_content_range(header(answer.headers, "content-range"));
    if (!range || range->begin != asked || range->end > fetch.offset + fetch.bytes)
      return {Status::kProtocol, true,
              fmt::format("asked for bytes from {} on, it sends '{}'", asked,
                          shown(header(answer.headers, "content-range")))};
    // It may send less than it was asked for, and have more.
    const uint64_t wanted_end = fetch.offset + fetch.bytes;
    fetch.on_server =
        (range->whole == UINT64_MAX ? range->end : std::min(range->whole, wanted_end)) - fetch.offset;
    // A range that is the whole has the whole's checksum, and so has every range of Google's.
    const bool is_whole = range->begin == 0 && range->end == range->whole;
    const bool tells = is_whole || (client.settings().kind == ServerKind::kGcs && range->whole != UINT64_MAX);
    if (job_.reading->checks() && tells) learn(answer, range->whole);
  }
  if (!job_.reading->is_version(object, header(answer.headers, "etag"),
                                header(answer.headers, "x-goog-generation")))
    return {Status::kStale, false, kReplaced};
  return {};
}

Verdict Reader::takes(Fetch& fetch, std::span<const std::byte> bytes) {
  if (bytes.size() > fetch.bytes - fetch.done)
    return {Status::kProtocol, false, "the server sends more than it was asked for"};
  if (job_.reading->checks())
    fetch.crc = crc32c({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, fetch.crc);
  fetch.done += bytes.size();
  while (!bytes.empty()) {
    const towline_segment& into = fetch.segments[fetch.segment];
    const size_t count = std::min<uint64_t>(bytes.size(), into.length - fetch.in_segment);
    copy_bytes(reinterpret_cast<std::byte*>(into.local) + fetch.in_segment, bytes.data(), count);
    bytes = bytes.subspan(count);
    fetch.in_segment += count;
    if (fetch.in_segment == into.length) {
      ++fetch.segment;
      fetch.in_segment = 0;
    }
  }
  return {};
}

Verdict Reader::check(Fetch& fetch, const Answer&) {
  if (fetch.done == fetch.bytes) return {};
  if (fetch.done < fetch.on_server)
    return {Status::kIo, true, fmt::format("its body ended {} bytes early", fetch.on_server - fetch.done)};
  return {Status::kShort, false,
          fmt::format("the object has {} bytes, {} were asked for", fetch.offset + fetch.done,
                      fetch.offset + fetch.bytes)};
}

void Reader::done(Fetch& fetch, const Answer& answer) {
  fetch.under_way = false;
  --under_way_;
  job_.moved(fetch.done);
  if (answer.ok()) {
    try {
      if (job_.reading->checks())
        job_.reading->read_stretch(object_of(fetch), fetch.offset, fetch.bytes, fetch.crc);
    } catch (const std::bad_alloc&) {  // its checksum would say nothing
      job_.failed(Status::kOutOfMemory, 0, fetch.plan_begin, fetch.plan_begin + fetch.bytes);
    }
    free_.push_back(&fetch);  // there is room for all
  } else {
    job_.failed(answer.status, answer.http_status, fetch.plan_begin + fetch.done,
                fetch.plan_begin + fetch.bytes);
    // Bytes further on are of no use any more; a fetch of bytes before may yet be the first failure.
    for (Fetch& other : fetches_) {
      if (!other.under_way || other.plan_begin < fetch.plan_begin) continue;
      client.stop(other.call);
      other.under_way = false;
      --under_way_;
      job_.moved(other.done);
    }
  }
  end_if_over();
  // Last, since it needs memory; the job's end is told later.
  if (answer.ok() || answer.status == Status::kShort) return;
  const bool replaced = answer.http_status == kPreconditionFailed;
  client.service().note_failure(replaced ? answer.text + ": " + kReplaced : answer.text);
}

}  // namespace towline::object
