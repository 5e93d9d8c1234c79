#include "stranger.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "agent/control_message.h"
#include "base/os/socket_address.h"
#include "metadata/blob/blob.h"
#include "metadata/listener/exchange.h"
#include "towline/towline.h"
#include "transports/tcp/packet_reader.h"
#include "transports/tcp/wire.h"

namespace towline::faults {

Target::Target(const std::vector<std::byte>& blob) {
  const metadata::PeerMetadata metadata =
      metadata::decode({reinterpret_cast<const uint8_t*>(blob.data()), blob.size()});
  incarnation = metadata.identity.incarnation;
  name = metadata.identity.name;
  for (const metadata::BackendMetadata& backend : metadata.backends) {
    std::vector<std::string> endpoints;
    if (backend.name == "tcp" && tcp::unpack_address(backend.address, endpoints) == nullptr)
      tcp = endpoints.front();
  }
  if (metadata.regions.empty()) return;
  key = metadata.regions.front().region.key;
  address = metadata.regions.front().region.address;
}

std::vector<std::byte> blob_of(const std::string& address) {
  const std::vector<uint8_t> blob =
      metadata::exchange(address, {}, Deadline::after(monotonic_now_ns(), 10 * kSecondNs));
  const auto* const bytes = reinterpret_cast<const std::byte*>(blob.data());
  return {bytes, bytes + blob.size()};
}

std::string listens_at(int fd) {
  int listens = 0;
  socklen_t bytes = sizeof listens;
  if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0 || listens == 0) return {};
  const SocketAddress address = SocketAddress::local_of(fd);
  return address.is_unix() ? "" : address.text();
}

Stranger::Stranger(const std::string& to, const std::string& from) {
  const SocketAddress there = numeric_address(parse_endpoint(to)).value();
  fd_.reset(socket(there.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!from.empty()) {
    const SocketAddress own = numeric_address(parse_endpoint(from, 0)).value();
    if (bind(fd_.get(), own.get(), own.size()) != 0) throw std::runtime_error("no such address: " + from);
  }
  if (connect(fd_.get(), there.get(), there.size()) != 0) throw std::runtime_error("nobody listens at " + to);
}

int32_t Stranger::hello(const Target& target, bool caller_driven, const Id& self) {
  tcp::Hello hello;
  hello.target = target.incarnation;
  hello.target_name = target.name;
  hello.connection = Id::random();
  hello.self.incarnation[0] = self.hi;
  hello.self.incarnation[1] = self.lo;
  hello.self.caller_driven = caller_driven ? 1 : 0;
  hello.self.workers = 1;
  hello.name = "stranger-" + self.to_hex();
  const std::vector<uint8_t> packet = tcp::pack(hello);
  if (!say(packet.data(), packet.size())) return TOWLINE_IO;
  tcp::PacketReader reader(tcp::kReplyMagic);
  Stream stream = Stream::accepted(duplicate_fd(fd_.get()));
  for (;;) {
    if (stream.wait(POLLIN, Deadline::after(monotonic_now_ns(), 20 * kSecondNs)) == 0) return TOWLINE_IO;
    const auto state = reader.receive(stream);
    if (state == tcp::PacketReader::State::kMore) continue;
    tcp::Reply reply;
    if (state != tcp::PacketReader::State::kWhole || tcp::unpack(reader.packet(), reply) != nullptr)
      return TOWLINE_IO;
    return reply.status;
  }
}

bool Stranger::say(const void* bytes, size_t count) {
  const auto* at = static_cast<const uint8_t*>(bytes);
  while (count != 0) {
    const ssize_t n = send(fd_.get(), at, count, MSG_NOSIGNAL);
    if (n <= 0) return false;
    at += n;
    count -= static_cast<size_t>(n);
  }
  return true;
}

bool Stranger::begin_frame(framing::FrameType type, const Target& target, uint32_t payload_bytes,
                           uint32_t message_bytes) {
  framing::FrameHeader header;
  header.type = type;
  header.sequence = sequence_++;
  header.payload_bytes = payload_bytes;
  header.message_bytes = message_bytes;
  std::vector<uint8_t> preamble(framing::kHeaderBytes);
  if (type == framing::FrameType::kWrite) {
    header.segment_count = 1;
    header.part = 1;
    const framing::WireSegment segment = {target.key, target.address, payload_bytes};
    preamble.resize(framing::kHeaderBytes + sizeof segment);
    std::memcpy(preamble.data() + framing::kHeaderBytes, &segment, sizeof segment);
  }
  framing::encode_header(header, preamble.data());
  return say(preamble.data(), preamble.size());
}

bool Stranger::notice(const Target& target, const std::string& text) {
  const DataMessage header = {
      {static_cast<uint8_t>(ControlType::kData), kControlVersion, 0, static_cast<uint32_t>(text.size())},
      0,
      0,
      1,
      0};
  std::vector<uint8_t> message(sizeof header + text.size());
  std::memcpy(message.data(), &header, sizeof header);
  std::memcpy(message.data() + sizeof header, text.data(), text.size());
  return begin_frame(framing::FrameType::kMessage, target, 0, static_cast<uint32_t>(message.size())) &&
         say(message.data(), message.size());
}

size_t Stranger::count_frames(framing::FrameType type) {
  uint8_t piece[4096];
  for (ssize_t n = 0; (n = recv(fd_.get(), piece, sizeof piece, MSG_DONTWAIT)) > 0;)
    heard_.insert(heard_.end(), piece, piece + n);
  size_t count = 0;
  for (size_t at = 0; at + framing::kHeaderBytes <= heard_.size();) {
    framing::FrameHeader header;
    if (framing::decode_header(heard_.data() + at, header) != nullptr) break;
    if (header.type == type) ++count;
    at += framing::preamble_bytes(header) + header.payload_bytes + header.message_bytes;
  }
  return count;
}

bool Stranger::closed_within(int milliseconds) {
  pollfd waiting = {fd_.get(), POLLRDHUP, 0};
  return poll(&waiting, 1, milliseconds) > 0;
}

}  // namespace towline::faults
