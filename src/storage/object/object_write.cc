#include "storage/object/object_write.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/copy/copy.h"
#include "base/id.h"
#include "base/short_text.h"
#include "storage/object/checksum.h"
#include "storage/object/reaper.h"

namespace towline::object {

ObjectWrite::ObjectWrite(WriteListener& listener, Client& client, Reaper& reaper, Object& object,
                         Stretch stretch, PartMemory* memory)
    : listener_(listener),
      client_(client),
      reaper_(reaper),
      object_(object),
      stretch_(std::move(stretch)),
      memory_(memory) {}

ObjectWrite::~ObjectWrite() = default;

// ---- planning

void ObjectWrite::start() try {
  if (object_.replaces()) return start_replacement();
  const Version known = object_.version();
  const bool shorter = known.exists && stretch_.end < known.bytes && !client_.settings().writes_whole;
  if (stretch_.begin != 0 || shorter) return head();
  const uint64_t size = part_size(stretch_.end, client_.settings().part_bytes);
  if (stretch_.end <= client_.settings().multipart_bytes) {
    if (memory_ == nullptr) return put(stretch_);
    if (stretch_.end <= size) return collect_put();
  }
  std::vector<Piece> pieces;
  cut(0, stretch_.end, size, 0, false, pieces);
  create(std::move(pieces));
} catch (const plugin::Failure& failure) {
  failed(failure.status(), 0, failure.what());
}

// Parts of a replacement lie on a grid, so that writers of different stretches agree on their numbers.
void ObjectWrite::start_replacement() {
  const uint64_t size = part_size(object_.bytes(), client_.settings().part_bytes);
  {
    std::lock_guard lock(object_.replacement_mutex);
    upload_id_ = object_.upload_id;
    if (object_.stage != Object::Stage::kOpen)
      throw plugin::Failure(Status::kStale, "the replacement has been committed");
  }
  if (stretch_.begin % size != 0)
    throw plugin::Failure(
        Status::kUnsupported,
        fmt::format(
            "a replacement is written in parts of {} bytes (tuning.object.part): none begins at byte {}",
            size, stretch_.begin));
  std::vector<Piece> pieces;
  cut(stretch_.begin, stretch_.end, size, 0, false, pieces);
  add_parts(pieces, static_cast<uint32_t>(stretch_.begin / size) + 1);
}

template <class Step>
void ObjectWrite::try_step(Step&& step) {
  try {
    step();
  } catch (const std::bad_alloc&) {
    if (settling_) listener_.not_fenced();
    failed(Status::kOutOfMemory, 0, "out of memory");  // so short a text needs none
  }
}

// ---- whole and small

void ObjectWrite::put(const Stretch& from) {
  body_ = SegmentsBody(from, stretch_.begin, stretch_.end);
  call_.method = "PUT";
  call_.name = object_.name();
  tag_ = protocol().tags_writes() ? Id::random().to_hex() : "";
  protocol().make_put(call_, tag_);
  call_.effective = true;
  protocol().make_upload(call_, body_, checksum(), signs(), sums_);
  object_.add_conditions(call_.headers);
  crc_ = sums_.crc;
  crc_known_ = !sums_.crc32c.empty();
  lasting_ = true;
  call_.check = [this](const Answer& answer) { return protocol().check_upload(answer, sums_); };
  call_.done = [this](Answer& answer) { try_step([&] { wrote(answer); }); };
  begin(call_);
}

void ObjectWrite::begin(Call& call) {
  call.urgent = urgent();
  client_.start(call);
}

// ---- collected as it arrives

void ObjectWrite::collect_put() {
  puts_ = true;
  pieces_ = {{0, stretch_.end, false}};
  listener_.has_room();
}

uint64_t ObjectWrite::collect(const std::byte* data, uint64_t bytes) {
  if (over_ || stopping_) return 0;
  if (filling_ == nullptr && !begin_collecting()) return 0;
  PartCall& part = *filling_;
  const uint64_t size = part.collected.end - part.collected.begin;
  const uint64_t taken = std::min(bytes, size - part.filled);
  copy_bytes(part.buffer.data() + part.filled, data, taken);
  part.filled += taken;
  if (part.filled < size) return taken;
  filling_ = nullptr;
  if (puts_) {
    put(part.collected);
  } else {
    collected_.push_back(&part);
    client_.add_feeder(*this);
  }
  return taken;
}

// False: the parts are not known yet, or there is no memory for one.
bool ObjectWrite::begin_collecting() {
  while (next_collected_ < pieces_.size() && pieces_[next_collected_].copied) ++next_collected_;
  if (next_collected_ == pieces_.size()) return false;
  const Piece piece = pieces_[next_collected_];
  PartBuffer buffer;
  const Status status = memory_->take(piece.end - piece.begin, buffer);
  if (status == Status::kOutOfMemory)
    failed(status, 0,
           fmt::format("{}: there is no memory to collect a part of {} bytes", object_.name().text(),
                       piece.end - piece.begin));
  if (status != Status::kOk) return false;
  ++next_collected_;
  PartCall& part = free_part();
  part.buffer = std::move(buffer);
  part.filled = 0;
  const auto address = reinterpret_cast<uint64_t>(part.buffer.data());
  part.collected = {0, piece.begin, piece.end, 0, 0, {{address, piece.begin, piece.end - piece.begin, 0, 0}}};
  filling_ = &part;
  return true;
}

// ---- a stretch of what is there

void ObjectWrite::head() {
  protocol().make_head(call_, object_.name());
  lasting_ = false;
  call_.done = [this](const Answer& answer) { try_step([&] { seen(answer); }); };
  begin(call_);
}

void ObjectWrite::seen(const Answer& answer) {
  if (stopping_) return over();
  if (!answer.ok() && answer.status != Status::kNotFound) return failed(answer);
  before_ = answer.ok() ? protocol().version_of(answer.headers) : Version{};
  const bool whole = stretch_.begin == 0 && stretch_.end >= before_.bytes;
  object_.set_version(before_);
  if (whole) return start();
  try {
    if (!protocol().copies_parts())
      throw plugin::Failure(
          Status::kUnsupported,
          fmt::format(
              "bytes {} to {} of an object of {} bytes can't be written alone, since nothing is copied "
              "within this server; write the object whole",
              stretch_.begin, stretch_.end, before_.bytes));
    create(patch_pieces(stretch_.begin, stretch_.end, before_.bytes, client_.settings()));
  } catch (const plugin::Failure& failure) {
    failed(failure.status(), 0, object_.name().text() + ": " + failure.what());
  }
}

// ---- in parts

void ObjectWrite::create(std::vector<Piece> pieces) {
  if (!protocol().keeps_uploads()) {
    upload_id_ = Id::random().to_hex();
    return add_parts(pieces, 1);
  }
  copies_ = std::any_of(pieces.begin(), pieces.end(), [](const Piece& piece) { return piece.copied; });
  lasting_ = false;
  beginning_ = std::make_shared<Beginning>(client_);
  Call& call = beginning_->call;
  protocol().make_create(call, object_, checksum());
  call.check = [beginning = beginning_.get()](const Answer& answer) {
    return check_created(answer, beginning->upload_id);
  };
  call.done = [this, pieces = std::move(pieces)](const Answer& answer) {
    const auto begun = std::move(beginning_);  // its call is on the stack
    if (!answer.ok()) return failed(answer);
    upload_id_ = std::move(begun->upload_id);
    try_step([&] { add_parts(pieces, 1); });
  };
  begin(call);
}

void ObjectWrite::add_parts(const std::vector<Piece>& pieces, uint32_t first_number) {
  pieces_ = pieces;
  for (size_t i = 0; i < pieces.size(); ++i) numbers_.push_back(first_number + static_cast<uint32_t>(i));
  client_.add_feeder(*this);
  if (memory_ != nullptr) listener_.has_room();
}

ObjectWrite::PartCall& ObjectWrite::free_part() {
  if (free_.empty()) return part_calls_.emplace_back();
  PartCall& part = *free_.back();
  free_.pop_back();
  return part;
}

bool ObjectWrite::feed() {
  if (over_ || next_piece_ >= pieces_.size()) return false;
  const Piece piece = pieces_[next_piece_];
  const bool is_collected = memory_ != nullptr && !piece.copied;
  if (is_collected && collected_.empty()) return false;  // once it is, this feeder is added again
  try_step([&] {
    PartCall& part = is_collected ? *collected_.front() : free_part();
    if (is_collected) collected_.pop_front();
    part.number = numbers_[next_piece_++];
    part.under_way = true;
    ++under_way_;
    ask(part, piece);
  });
  return !over_ && next_piece_ < pieces_.size();
}

void ObjectWrite::ask(PartCall& part, const Piece& piece) {
  Call& call = part.call;
  part.part = {};
  part.part.begin = piece.begin;
  part.part.bytes = piece.end - piece.begin;
  protocol().make_part(call, object_, upload_id_, part.number);
  if (piece.copied) {
    call.body = nullptr;
    call.payload_hash.clear();
    call.cost = 0;
    protocol().make_copy(call, object_, before_, piece);
    call.check = [&part, this](Answer& answer) -> Verdict {
      if (Verdict verdict = protocol().check_completed(answer); verdict.status != Status::kOk) return verdict;
      part.part.etag = decode_etag(answer.body);
      return part.part.etag.empty() ? Verdict{Status::kProtocol, false, "the copied part has no ETag"}
                                    : Verdict{};
    };
  } else {
    part.body = SegmentsBody(memory_ != nullptr ? part.collected : stretch_, piece.begin, piece.end);
    protocol().make_upload(call, part.body, checksum(), signs(), part.part);
    call.check = [&part, this](const Answer& answer) { return protocol().check_part(answer, part.part); };
  }
  call.done = [&part, this](Answer& answer) { try_step([&] { part_done(part, answer); }); };
  begin(call);
}

void ObjectWrite::part_done(PartCall& part, Answer& answer) {
  part.under_way = false;
  --under_way_;
  if (!answer.ok()) return failed(answer);
  parts_[part.number] = part.part;
  part.buffer = {};
  free_.push_back(&part);
  if (memory_ != nullptr) listener_.has_room();
  if (under_way_ == 0 && next_piece_ == pieces_.size()) parts_done();
}

void ObjectWrite::parts_done() {
  if (!object_.replaces()) return complete();
  {
    std::unique_lock lock(object_.replacement_mutex);
    if (object_.stage != Object::Stage::kOpen) {
      lock.unlock();
      return failed(Status::kStale, 0, object_.name().text() + " was committed before this write had ended");
    }
    for (const auto& [number, part] : parts_) object_.parts[number] = part;
  }
  listener_.moved(stretch_.end - stretch_.begin);
  over();
}

void ObjectWrite::complete() {
  call_.body = nullptr;
  call_.cost = 0;
  tag_ = protocol().tags_writes() ? upload_id_ : "";
  protocol().make_complete(call_, object_, upload_id_, parts_, checksum());
  object_.add_conditions(call_.headers);
  if (copies_ && !object_.conditional() && before_.exists)
    call_.headers.emplace_back("if-match", before_.etag);
  crc_known_ = checksum() == Checksum::kCrc32c;
  if (crc_known_) crc_ = joined_crc(parts_);
  lasting_ = true;
  call_.check = [this](Answer& answer) { return protocol().check_completed(answer); };
  call_.done = [this](Answer& answer) { try_step([&] { wrote(answer); }); };
  begin(call_);
}

// ---- the end

// As far as the answer tells.
Version ObjectWrite::made(const Answer& answer) const {
  Version version = {.looked = true, .exists = true};
  version.bytes = std::max(stretch_.end, before_.bytes);
  if (answer.ok()) version.etag = etag_of(answer);
  if (crc_known_) version.crc32c = crc32c_text(crc_);
  version.tag = tag_;
  return version;
}

void ObjectWrite::wrote(Answer& answer) {
  lasting_ = false;
  // An attempt before this one may have done it, with its answer lost. And of a complete the server that was
  // killed during that attempt may take it for still at work, and answer so although nobody is.
  if (answer.uncertain && !(answer.ok() && upload_id_.empty())) return settle(answer);
  if (!answer.ok()) return failed(answer);
  is_there(made(answer));
}

void ObjectWrite::is_there(Version version) {
  upload_id_.clear();
  object_.set_version(std::move(version));
  listener_.moved(stretch_.end - stretch_.begin);
  over();
}

void ObjectWrite::settle(const Answer& answer) {
  settling_ = true;
  call_.body = nullptr;
  call_.cost = 0;
  call_.effective = false;
  call_.payload_hash.clear();
  call_.text.clear();
  protocol().make_head(call_, object_.name());
  call_.check = nullptr;
  call_.done = [this, lost = answer](const Answer& found) {
    try_step([&] {
      Version there = found.ok() ? protocol().version_of(found.headers) : Version{};
      if (is_what_was_made(there, made(lost))) return is_there(std::move(there));
      listener_.not_fenced();
      failed(lost.ok() ? Status::kIo : lost.status, lost.http_status, why_not_there(lost, object_.name()));
    });
  };
  begin(call_);
}

void ObjectWrite::failed(Status status, long http_status, const std::string& text) noexcept {
  if (over_) return;
  client_.service().note_failure(text);
  listener_.failed(status, http_status, stretch_.plan_begin, stretch_.plan_end);
  over();
}

void ObjectWrite::stop(Status status, bool now) {
  if (over_ || (stopping_ && !now)) return;
  stopping_ = true;
  // A request that the server has received completely can't be cancelled: wait for its answer.
  const bool all_sent = lasting_ && Client::all_sent(call_);
  if (all_sent && !now) {
    call_.last_attempt = true;
    return;
  }
  if (all_sent || settling_ || (lasting_ && Client::uncertain(call_))) listener_.not_fenced();
  listener_.failed(status, 0, stretch_.plan_begin, stretch_.plan_end);
  over();
}

void ObjectWrite::over() noexcept {
  if (over_) return;
  over_ = true;
  client_.remove_feeder(*this);
  client_.stop(call_);
  if (beginning_ != nullptr) reaper_.await(std::move(beginning_));
  for (PartCall& part : part_calls_) {
    if (part.under_way) client_.stop(part.call);
    part.under_way = false;
  }
  if (!upload_id_.empty() && !object_.replaces() && protocol().keeps_uploads()) leave_upload();
  listener_.one_over();
}

void ObjectWrite::leave_upload() noexcept {
  try {
    reaper_.add(object_.name(), upload_id_);
  } catch (const std::bad_alloc&) {
    client_.service().host.log(1,
                               ShortText("the unfinished upload {} stays behind: out of memory", upload_id_));
  }
}

}  // namespace towline::object
