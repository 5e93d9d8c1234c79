// The data path in: what the domains tell.
#include "fabric/engine_state.h"

namespace towline::fabric {

std::size_t Engine::State::poll(Rail& rail) noexcept {
  const std::size_t count = rail.domain->poll(completions.data(), completions.size());
  for (std::size_t i = 0; i < count; ++i) handle(rail, completions[i]);
  turn_events += count;
  return count;
}

void Engine::State::handle(Rail& rail, const Completion& completion) noexcept {
  if (completion.kind == CompletionKind::kDomainDown) return rail_down(rail);
  if (completion.connection >= rail.connections.size()) return;
  Connection& connection = rail.connections[completion.connection];
  if (connection.state == ConnectionState::kFree || connection.state == ConnectionState::kClosing) return;
  switch (completion.kind) {
    case CompletionKind::kRequest:
      return request_done(rail, connection, completion);
    case CompletionKind::kReceive:
    case CompletionKind::kReceiveImmediate:
      return receive(connection, completion);
    case CompletionKind::kConnectionDown:
      return break_connection(connection, completion.status);
    case CompletionKind::kDomainDown:
      return;
  }
}

// The peer or the memory's registration refused the request: another rail would not help.
static bool refused(Status status) noexcept {
  return status == Status::kPermissionDenied || status == Status::kOutOfRange || status == Status::kStale ||
         status == Status::kInvalidArgument;
}

void Engine::State::request_done(Rail& rail, Connection& connection, const Completion& completion) noexcept {
  const uint64_t position = completion.cookie;
  if (position - connection.head >= connection.under_way()) return;  // not under way
  if (completion.status != Status::kOk) {
    const Entry& entry = connection.at(position);
    if (refused(completion.status) && entry.kind != EntryKind::kCredit && !entry.done &&
        connection.state == ConnectionState::kReady) {
      const uint32_t index = entry.slice.transfer;
      break_connection(connection, completion.status);
      return end(transfers[index], completion.status);
    }
    return break_connection(connection, completion.status);
  }
  connection.last_progress_ns = now_ns;
  if (rail.in_order) {
    while (connection.head <= position) {
      Entry& entry = connection.at(connection.head++);
      if (!entry.done) finish(rail, connection, entry);
    }
    return;
  }
  Entry& entry = connection.at(position);
  if (!entry.done) finish(rail, connection, entry);
  while (connection.head != connection.tail && connection.at(connection.head).done) ++connection.head;
}

void Engine::State::finish(Rail& rail, Connection& connection, Entry& entry) noexcept {
  entry.done = true;
  if (connection.state != ConnectionState::kClosing) --rail.under_way;
  if (entry.kind == EntryKind::kCredit || entry.kind == EntryKind::kRecord)
    connection.free_buffers |= uint64_t{1} << entry.slice.local_region;
  if (entry.kind == EntryKind::kCredit) return send_credit(connection);
  Transfer& transfer = transfers[entry.slice.transfer];
  if (entry.kind != EntryKind::kRecord) {
    connection.bytes -= entry.slice.length;
    rail.counters.bytes += entry.slice.length;
    transfer.done += entry.slice.length;
  }
  transfer.stalls = transfer.breaks = 0;
  if (entry.kind != EntryKind::kData) {
    transfer.record_done = true;
  }
  if (--transfer.outstanding == 0) settle(transfer);
}

}  // namespace towline::fabric
