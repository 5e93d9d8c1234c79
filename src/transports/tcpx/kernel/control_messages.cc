#include "transports/tcpx/kernel/control_messages.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "base/wire.h"

namespace towline::tcpx {
namespace {

constexpr std::size_t kHeaderBytes = 16;  // length, level, type
static_assert(sizeof(cmsghdr) == kHeaderBytes && CMSG_ALIGN(1) == 8);

struct ControlMessage {
  int level = 0;
  int type = 0;
  std::span<const uint8_t> data;
};

// Takes the first message off `control`. False at the end, and where a length can't be right.
bool next_message(std::span<const uint8_t>& control, ControlMessage& message) noexcept {
  WireReader reader(control);
  const uint64_t bytes = reader.u64();
  message.level = reader.i32();
  message.type = reader.i32();
  if (!reader.ok() || bytes < kHeaderBytes || bytes > control.size()) return false;
  message.data = control.subspan(kHeaderBytes, bytes - kHeaderBytes);
  control = control.subspan(std::min<std::size_t>((bytes + 7) & ~uint64_t{7}, control.size()));
  return true;
}

// A fragment, or why the message describes none.
const char* decode_fragment(const Dialect& dialect, const ControlMessage& message, uint32_t pool,
                            Fragment& fragment) noexcept {
  WireReader reader(message.data);
  fragment = {};
  fragment.linear = message.type == dialect.linear;
  const bool narrow = !dialect.names_pool && message.data.size() == 12;  // its first kernels' offsets
  fragment.offset = narrow ? reader.u32() : reader.u64();
  fragment.bytes = reader.u32();
  fragment.token = reader.u32();
  const uint32_t named = dialect.names_pool ? reader.u32() : pool;
  if (dialect.names_pool) reader.skip(4);  // flags: none are known
  if (!reader.finished()) return "a control message of a length that no kernel sends";
  if (fragment.linear) {
    fragment.offset = 0;
    fragment.token = 0;
  } else if (named != pool) {
    return "a fragment of an unknown pool";
  }
  return nullptr;
}

}  // namespace

Arrived decode_fragments(const Dialect& dialect, std::span<const uint8_t> control, int flags,
                         std::size_t returned, uint32_t pool, std::span<Fragment> out) noexcept {
  Arrived arrived;
  ControlMessage message;
  bool any = false;
  while (next_message(control, message)) {
    if (message.level != SOL_SOCKET || (message.type != dialect.linear && message.type != dialect.in_pool))
      continue;  // another option's, such as a time stamp
    any = true;
    Fragment fragment;
    if (const char* wrong = decode_fragment(dialect, message, pool, fragment)) {
      arrived.wrong = wrong;
      break;
    }
    if (fragment.linear && fragment.bytes == 0) continue;  // legacy kernels send empty ones
    if (arrived.count == out.size()) {
      arrived.wrong = "more fragments than there was room for";
      break;
    }
    out[arrived.count++] = fragment;
    if (fragment.bytes == 0 || fragment.bytes > returned - arrived.bytes) {
      arrived.wrong =
          fragment.bytes == 0 ? "a fragment of no bytes" : "fragments longer than what was received";
      break;
    }
    arrived.bytes += fragment.bytes;
  }
  if (arrived.wrong != nullptr) return arrived;
  if ((flags & MSG_CTRUNC) != 0) {
    arrived.wrong = "control messages were cut off";  // with tokens that nobody can return
  } else if (!any && returned != 0) {
    if (out.empty() || returned > UINT32_MAX) {
      arrived.wrong = "more fragments than there was room for";
    } else {
      out[arrived.count++] = {0, static_cast<uint32_t>(returned), 0, 0, true};
      arrived.bytes = returned;
    }
  } else if (arrived.bytes != returned) {
    arrived.wrong = "fragments that don't add up to what was received";
  }
  return arrived;
}

TokenBatch next_batch(std::span<const uint32_t>& sorted) noexcept {
  TokenBatch batch;
  std::size_t taken = 0;
  for (; taken != sorted.size(); ++taken) {
    const uint32_t token = sorted[taken];
    if (batch.count != 0) {
      TokenRange& last = batch.ranges[batch.count - 1];
      if (token < last.first + last.count) continue;  // twice in the list
      if (batch.tokens == kMostTokensReturned) break;
      if (token == last.first + last.count) {
        ++last.count;
        ++batch.tokens;
        continue;
      }
    }
    if (batch.count == kMostRanges || batch.tokens == kMostTokensReturned) break;
    batch.ranges[batch.count++] = {token, 1};
    ++batch.tokens;
  }
  sorted = sorted.subspan(taken);
  return batch;
}

std::size_t encode_send(const Dialect& dialect, uint32_t memory, uint32_t offset,
                        std::span<uint8_t> out) noexcept {
  WireWriter writer(out);
  writer.u64(kHeaderBytes + (dialect.names_pool ? 4 : 8));
  writer.i32(SOL_SOCKET);
  writer.i32(dialect.in_pool);
  writer.u32(memory);
  writer.u32(dialect.names_pool ? 0 : offset);  // upstream: padding
  return writer.ok() ? writer.size() : 0;
}

}  // namespace towline::tcpx
