// The messages between connections over UCX, and their handlers.
#ifdef TOWLINE_HAVE_UCX

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/copy/copy.h"
#include "fabric/ucx/ucx_connection.h"

namespace towline::fabric {

// --- Out -----------------------------------------------------------------------------------------------

UcxConnection::Outgoing& UcxConnection::outgoing_for(const Header& header, uint64_t reads_from) {
  if (free_.empty()) {
    free_.reserve(outgoing_.size() + 1);  // all fit back without memory
    free_.push_back(&outgoing_.emplace_back());
    outgoing_.back().connection = this;
  }
  Outgoing& outgoing = *free_.back();
  free_.pop_back();
  outgoing.header = header;
  outgoing.reads_from = reads_from;
  outgoing.busy = true;
  if (reads_from != 0) ++serving_;
  return outgoing;
}

void UcxConnection::send(const Header& header, const void* data, std::size_t bytes, uint64_t reads_from,
                         std::vector<uint8_t> kept) {
  if (down_) return;
  Outgoing& outgoing = outgoing_for(header, reads_from);
  outgoing.bytes = std::move(kept);
  if (!outgoing.bytes.empty()) data = outgoing.bytes.data(), bytes = outgoing.bytes.size();
  hand_over(outgoing, data, bytes, 0);
}

void UcxConnection::hand_over(Outgoing& outgoing, const void* data, std::size_t count,
                              std::size_t parts) noexcept {
  ucp_request_param_t parameters{};
  parameters.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  parameters.cb.send = on_sent;
  parameters.user_data = &outgoing;
  parameters.flags = UCP_AM_SEND_FLAG_EAGER;
  if (parts != 0) {
    parameters.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
    parameters.datatype = ucp_dt_make_iov();
  }
  const std::size_t header_bytes = sizeof outgoing.header + parts * sizeof(Part);
  const ucs_status_ptr_t result =
      ucx_.ucp_am_send_nbx(endpoint_, kMessage, &outgoing.header, header_bytes, data, count, &parameters);
  if (UCS_PTR_IS_PTR(result)) return;  // on_sent() is called
  on_sent(nullptr, UCS_PTR_RAW_STATUS(result), &outgoing);
}

void UcxConnection::on_sent(void* request, ucs_status_t status, void* given) {
  auto& outgoing = *static_cast<Outgoing*>(given);
  UcxConnection& connection = *outgoing.connection;
  if (request != nullptr) connection.ucx_.ucp_request_free(request);
  if (outgoing.reads_from != 0) --connection.serving_;
  outgoing.busy = false;
  outgoing.reads_from = 0;
  connection.free_.push_back(&outgoing);
  if (status != UCS_OK) connection.down(status_of_ucx(status));
}

void UcxConnection::ask(const Header& read) {
  if (down_) return;
  if (asking_ == nullptr) {
    asking_ = &outgoing_for({.kind = Kind::kReads}, 0);
    asking_->asked_for = 0;
  }
  asking_->reads[asking_->asked_for++] = read;
  if (asking_->asked_for == kMaxAskedFor) send_reads();
}

void UcxConnection::send_reads() noexcept {
  if (asking_ == nullptr || down_) return;
  Outgoing& outgoing = *std::exchange(asking_, nullptr);
  const bool alone = outgoing.asked_for == 1;
  if (alone) outgoing.header = outgoing.reads[0];
  hand_over(outgoing, outgoing.reads.data(), alone ? 0 : outgoing.asked_for * sizeof(Header), 0);
}

// Answers what the peer may not do. Peers that take no answers get none.
void UcxConnection::refuse(const Header& refused, Status why) {
  if (outgoing_.size() - free_.size() > kMaxUnsent) return down(Status::kProtocol);
  send({.number = refused.number,
        .key = refused.kind == Kind::kRead ? 1u : 0u,
        .place = static_cast<uint64_t>(static_cast<int64_t>(why)),
        .kind = Kind::kRefuse});
}

// The request fails with the reason, so that it is not tried again, and the connection with it.
void UcxConnection::take_refusal(const Header& header) {
  Status why{static_cast<int32_t>(static_cast<int64_t>(header.place))};
  if (why != Status::kStale && why != Status::kOutOfRange && why != Status::kPermissionDenied)
    why = Status::kProtocol;
  const auto meant = std::find_if(issued_.begin(), issued_.end(), [&](const Entry& entry) {
    return header.key != 0 ? entry.read == header.number : entry.read == 0 && entry.number >= header.number;
  });
  if (meant != issued_.end()) owner_.tell({meant->cookie, 0, number_, 0, why, CompletionKind::kRequest});
  down(why);
}

// The peer's reads, in turn.
void UcxConnection::serve() {
  while (!asks_.empty() && serving_ < kMaxServing && !down_) {
    Ask& ask = asks_.front();
    Status why = Status::kOk;
    if (allowed(ask.wanted, false, why) == nullptr) {
      refuse(ask.wanted, why);
      asks_.pop_front();
      continue;
    }
    if (reads_together_ && serve_together()) continue;
    const auto bytes = static_cast<uint32_t>(std::min<uint64_t>(chunk_bytes_, ask.wanted.length - ask.sent));
    send({.number = ask.wanted.number, .place = ask.sent, .length = bytes, .kind = Kind::kReadData},
         reinterpret_cast<const void*>(ask.wanted.place + ask.sent), bytes, ask.wanted.key);
    ask.sent += bytes;
    if (ask.sent == ask.wanted.length) asks_.pop_front();
  }
}

bool UcxConnection::serve_together() {
  const uint64_t key = asks_.front().wanted.key;
  uint64_t bytes = 0;
  std::size_t count = 0;
  Status why = Status::kOk;
  for (; count < std::min(kMaxTogether, asks_.size()); ++count) {
    const Ask& ask = asks_[count];
    if (ask.sent != 0 || ask.wanted.key != key || bytes + ask.wanted.length > kUcxChunkBytes) break;
    if (count != 0 && allowed(ask.wanted, false, why) == nullptr) break;
    bytes += ask.wanted.length;
  }
  if (count < 2) return false;
  Outgoing& outgoing = outgoing_for({.kind = Kind::kReadsData}, key);
  for (std::size_t i = 0; i < count; ++i) {
    const Header& wanted = asks_[i].wanted;
    outgoing.parts[i] = {static_cast<uint32_t>(wanted.number), wanted.length};
    outgoing.pieces[i] = {reinterpret_cast<void*>(wanted.place), wanted.length};
  }
  asks_.erase(asks_.begin(), asks_.begin() + static_cast<std::ptrdiff_t>(count));
  hand_over(outgoing, outgoing.pieces.data(), count, count);
  return true;
}

bool UcxConnection::serves(uint64_t key) const noexcept {
  return std::any_of(outgoing_.begin(), outgoing_.end(),
                     [key](const Outgoing& outgoing) { return outgoing.busy && outgoing.reads_from == key; });
}

// --- In ------------------------------------------------------------------------------------------------

ucs_status_t UcxConnection::on_message(void* self, const void* given, size_t header_bytes, void* data,
                                       size_t bytes, const ucp_am_recv_param_t* parameters) {
  auto& connection = *static_cast<UcxConnection*>(self);
  if (connection.down_) return UCS_OK;
  Header header;
  if (header_bytes < sizeof header || (parameters->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    connection.down(Status::kProtocol);
    return UCS_OK;
  }
  std::memcpy(&header, given, sizeof header);
  try {
    connection.take(header,
                    {static_cast<const uint8_t*>(given) + sizeof header, header_bytes - sizeof header},
                    {static_cast<const uint8_t*>(data), bytes});
  } catch (const std::bad_alloc&) {
    connection.down(Status::kOutOfMemory);
  }
  return UCS_OK;
}

void UcxConnection::take(const Header& header, std::span<const uint8_t> parts,
                         std::span<const uint8_t> data) {
  if (!parts.empty() && header.kind != Kind::kReadsData) return down(Status::kProtocol);
  switch (header.kind) {
    case Kind::kRecord:
      return take_record(header, data);
    case Kind::kWrite:
      return take_write(header, data);
    case Kind::kRead:
      return take_read(header);
    case Kind::kReads:
      return take_reads(data);
    case Kind::kReadData:
      return take_read_data(header, data);
    case Kind::kReadsData:
      return take_reads_data(parts, data);
    case Kind::kAcknowledge:
      if (header.number > numbered_) return down(Status::kProtocol);
      arrived_ = std::max(arrived_, header.number);
      return;
    case Kind::kRefuse:
      return take_refusal(header);
    case Kind::kAskBlob:
      if (asked_.size() >= kMaxAsked) return down(Status::kProtocol);
      asked_.push_back(header.number);
      return;
    case Kind::kBlob:
      return take_key(header.number, data);
  }
  down(Status::kProtocol);
}

// Each arrives once, and none arrives before ones that were acknowledged long ago.
void UcxConnection::number_came(uint64_t number) noexcept {
  if (!came_.insert(number)) down(Status::kProtocol);
}

void UcxConnection::take_record(const Header& header, std::span<const uint8_t> data) {
  if (receives_.empty() || data.size() > receives_.front().length) return down(Status::kProtocol);
  number_came(header.number);
  if (down_) return;
  const ReceiveRequest receive = receives_.front();
  receives_.pop_front();
  copy_bytes(reinterpret_cast<void*>(receive.address), data.data(), data.size());
  owner_.tell({receive.cookie, 0, number_, static_cast<uint32_t>(data.size()), Status::kOk,
               CompletionKind::kReceive});
}

// The registration that `header` names, if the peer may move all of it.
const UcxRegistered* UcxConnection::allowed(const Header& header, bool write, Status& why) const noexcept {
  const UcxRegistered* registered = owner_.find(header.key);
  why = Status::kStale;
  if (registered == nullptr) return nullptr;
  why = Status::kPermissionDenied;
  if (!(write ? registered->writable : registered->readable)) return nullptr;
  why = Status::kOutOfRange;
  if (header.place < registered->address || header.place - registered->address > registered->bytes ||
      header.length > registered->bytes - (header.place - registered->address))
    return nullptr;
  why = Status::kOk;
  return registered;
}

void UcxConnection::take_write(const Header& header, std::span<const uint8_t> data) {
  if (data.size() != header.length) return down(Status::kProtocol);
  Status why = Status::kOk;
  if (allowed(header, true, why) == nullptr) return refuse(header, why);
  number_came(header.number);
  if (!down_) copy_bytes(reinterpret_cast<void*>(header.place), data.data(), data.size());
}

void UcxConnection::take_read_data(const Header& header, std::span<const uint8_t> data) noexcept {
  if (header.number == 0 || header.number > reads_.size()) return down(Status::kProtocol);
  Read& read = reads_[header.number - 1];
  if (!read.used || data.size() > read.length - read.arrived || header.place > read.length - data.size())
    return down(Status::kProtocol);
  copy_bytes(reinterpret_cast<void*>(read.local + header.place), data.data(), data.size());
  read.arrived += static_cast<uint32_t>(data.size());
}

void UcxConnection::take_read(const Header& header) {
  if (header.length == 0 || asks_.size() >= kMaxAsked) return down(Status::kProtocol);
  asks_.push_back({.wanted = header});
}

void UcxConnection::take_reads(std::span<const uint8_t> data) {
  if (data.empty() || data.size() % sizeof(Header) != 0) return down(Status::kProtocol);
  for (; !data.empty() && !down_; data = data.subspan(sizeof(Header))) {
    Header one;
    std::memcpy(&one, data.data(), sizeof one);
    if (one.kind != Kind::kRead) return down(Status::kProtocol);
    take_read(one);
  }
}

void UcxConnection::take_reads_data(std::span<const uint8_t> parts, std::span<const uint8_t> data) noexcept {
  if (parts.empty() || parts.size() % sizeof(Part) != 0) return down(Status::kProtocol);
  for (; !parts.empty(); parts = parts.subspan(sizeof(Part))) {
    Part part;
    std::memcpy(&part, parts.data(), sizeof part);
    if (part.length > data.size()) return down(Status::kProtocol);
    take_read_data({.number = part.number}, data.first(part.length));
    if (down_) return;
    data = data.subspan(part.length);
  }
  if (!data.empty()) down(Status::kProtocol);
}

void UcxConnection::take_key(uint64_t key, std::span<const uint8_t> blob) {
  const auto known = keys_.find(key);
  if (known == keys_.end() || known->second.key != nullptr) return;
  if (blob.empty()) {  // it is not registered any more
    if (!waiting_.empty())
      owner_.tell({waiting_.front().cookie, 0, number_, 0, Status::kStale, CompletionKind::kRequest});
    return down(Status::kStale);
  }
  if (blob.size() < 8 || blob.size() > kMaxBlobBytes) return down(Status::kProtocol);
  std::vector<uint8_t> padded{blob.begin(), blob.end()};
  padded.resize(blob.size() + 1024);  // UCX does not know the size
  if (ucx_.ucp_ep_rkey_unpack(endpoint_, padded.data(), &known->second.key) != UCS_OK) {
    known->second.key = nullptr;
    down(Status::kProtocol);
  }
}

}  // namespace towline::fabric

#endif  // TOWLINE_HAVE_UCX
