// Larger operations whose data carries marks: a line of 128 bytes has 120 of data and one mark, so that marks cost the link
// a fifteenth, where those of slots (marked.h) cost as much as the data.
//
// Eight threads of a warp store a line with one instruction. Between GPUs that NVLink joins, an aligned line that is
// stored so arrives whole, and one instruction of eight threads loads it whole. NCCL's protocol LL128 rests on the same.
// Elsewhere a line may arrive in parts, and slots are used (Gpu::whole_lines).
//
// So the threads of a warp must not have parted before they store or load: __syncwarp() waits for all, but those that had parted
// go on apart. What they do is the same for all, then, with selects in place of branches. Data that does not start and end at
// multiples of 8 needs branches: a rank that has some is "odd", stores a mark after its line, and loads lines twice.
//
// A mark is the operation's digest and the block's count of operations, so lines are never emptied.
#pragma once

#include <stddef.h>

#include "collectives/gpu/marked.h"

namespace towline::collectives::gpu {

// ---- A thread's part of a line

inline constexpr uint32_t kGpuLineThreads = 8;
#if defined(__CUDA_ARCH__)
inline constexpr uint32_t kLineThreads = kGpuLineThreads;
TOWLINE_DEVICE bool warp_all(bool value) { return __all_sync(0xffffffffu, value) != 0; }
TOWLINE_DEVICE void warp_sync() { __syncwarp(); }
#else
inline constexpr uint32_t kLineThreads = 1;  // the model's block has one thread
TOWLINE_DEVICE bool warp_all(bool value) { return value; }
TOWLINE_DEVICE void warp_sync() {}
#endif
inline constexpr uint32_t kLineWords = 16 / kLineThreads;  // of 8 bytes; the line's last is its mark

struct Words {
  uint64_t word[kLineWords];
};

TOWLINE_DEVICE uint32_t first_word() { return device::thread() % kLineThreads * kLineWords; }
TOWLINE_DEVICE bool has_mark() { return first_word() + kLineWords == 16; }

TOWLINE_DEVICE void store_line(uint64_t line, const Words& words, uint64_t mark) {
  const uint64_t address = line + first_word() * 8;
#if defined(__CUDA_ARCH__)
  asm volatile("st.volatile.global.v2.u64 [%0], {%1,%2};" ::"l"(address), "l"(words.word[0]),
               "l"(has_mark() ? mark : words.word[1])
               : "memory");
#else
  auto* const to = reinterpret_cast<uint64_t*>(address);
  for (uint32_t i = 0; i + 1 < kLineWords; ++i) device::store_relaxed(to + i, words.word[i]);
  device::store_release(to + kLineWords - 1, mark);
#endif
}
TOWLINE_DEVICE void load_line(uint64_t line, Words& words) {
  const uint64_t address = line + first_word() * 8;
#if defined(__CUDA_ARCH__)
  asm volatile("ld.volatile.global.v2.u64 {%0,%1}, [%2];"
               : "=l"(words.word[0]), "=l"(words.word[1])
               : "l"(address)
               : "memory");
#else
  const auto* const from = reinterpret_cast<const uint64_t*>(address);
  words.word[kLineWords - 1] = device::load_acquire(from + kLineWords - 1);
  for (uint32_t i = 0; i + 1 < kLineWords; ++i) words.word[i] = device::load_relaxed(from + i);
#endif
}

// ---- A block's lines

// A block's piece of the data between two ranks.
struct Piece {
  uint64_t address;
  uint32_t bytes;
};
TOWLINE_DEVICE uint32_t lines_in(const Piece& piece) {
  constexpr auto kBytes = static_cast<uint32_t>(kLineBytes);
  return (piece.bytes + kBytes - 1) / kBytes;
}

// A step of an operation, of this block. kRanks: of at most so many ranks. With few, a thread works on several lines at once, so
// that their loads overlap. kOdd: this rank's data is odd. Both are constants since a kernel's code comes from memory as well, and
// what is jumped over is not fetched.
template <uint32_t kRanks, bool kOdd, uint32_t kAtOnce = kMarkedRanks / kRanks>
struct Step {
  static constexpr uint32_t kLines = kOdd ? 1 : kAtOnce;
  static constexpr uint32_t kOthers = kRanks - 1;
  using Cells = Words[kLines][kOthers];  // what other ranks give

  const Job& job;
  uint32_t block;
  uint32_t count;  // the block's

  // The others are numbered in the order of their ranks.
  TOWLINE_DEVICE uint32_t other(uint32_t index) const { return index < job.rank ? index : index + 1; }
  TOWLINE_DEVICE uint64_t mark() const { return static_cast<uint64_t>(job.digest) << 32 | count; }
  TOWLINE_DEVICE uint64_t line(uint32_t at, uint32_t from, uint32_t number) const {
    const uint32_t index = (count % kMarkedTurns * marked_blocks(job.size) + block) * job.size + from;
    return job.segment[at] + lines_at(job.size) + (index * most_lines(job.size) + number) * uint64_t{128};
  }
};

// The word there, or 0. Without a branch, so that loads overlap. (If threads without data loaded a word that all have, they would wait for
// it in line: 1.5 us with 64 blocks on H200.)
TOWLINE_DEVICE uint64_t load_if(bool data, uint64_t address) {
#if defined(__CUDA_ARCH__)
  uint64_t value = 0;
  asm volatile(
      "{\n\t.reg .pred data;\n\t"
      "setp.ne.u32 data, %2, 0;\n\t"
      "@data ld.volatile.global.u64 %0, [%1];\n\t}"
      : "+l"(value)
      : "l"(address), "r"(data ? 1 : 0)
      : "memory");
  return value;
#else
  return data ? device::load_unit<uint64_t>(address) : 0;
#endif
}
template <bool kOdd>
TOWLINE_DEVICE void load_data(const Piece& piece, uint32_t line, Words& words) {
  TOWLINE_UNROLL
  for (uint32_t i = 0; i < kLineWords; ++i) {
    const uint32_t word = first_word() + i;
    const uint32_t at = line * static_cast<uint32_t>(kLineBytes) + word * 8;
    const bool data = word != 15 && at < piece.bytes;
    if constexpr (kOdd)
      words.word[i] = data ? load8_short(piece.address + at, piece.bytes - at) : 0;
    else
      words.word[i] = load_if(data, piece.address + at);
  }
}
template <bool kOdd>
TOWLINE_DEVICE void store_data(const Piece& piece, uint32_t line, const Words& words) {
  TOWLINE_UNROLL
  for (uint32_t i = 0; i < kLineWords; ++i) {
    const uint32_t word = first_word() + i;
    const uint32_t at = line * static_cast<uint32_t>(kLineBytes) + word * 8;
    if (word == 15 || at >= piece.bytes) continue;
    if constexpr (kOdd)
      store8_short(piece.address + at, words.word[i], piece.bytes - at);
    else
      device::store_unit<uint64_t>(piece.address + at, words.word[i]);
  }
}

// The threads of a warp have as many rounds, since they vote.
struct Rounds {
  uint32_t step;  // lines of the block's threads
  uint32_t at_once;
  uint32_t count;
};
template <class S>
TOWLINE_DEVICE Rounds rounds_of(uint32_t lines) {
  const uint32_t step = device::threads() / kLineThreads;
  const uint32_t needed = (lines + step - 1) / step;
  const uint32_t at_once = needed < S::kLines ? needed : S::kLines;
  return {step, at_once, at_once == 0 ? 0 : (needed + at_once - 1) / at_once};
}
// does(index, line) with each line of a round.
template <class S, class Does>
TOWLINE_DEVICE void each_line(const Rounds& rounds, uint32_t round, Does&& does) {
  uint32_t line = round * rounds.at_once * rounds.step + device::thread() / kLineThreads;
  TOWLINE_UNROLL
  for (uint32_t index = 0; index < S::kLines; ++index) {
    if (index >= rounds.at_once) break;
    does(index, line);
    line += rounds.step;
  }
}
// does(cell, peer, line) with each other rank's.
template <class S, class Does>
TOWLINE_DEVICE void each_cell(const S& step, const Rounds& rounds, uint32_t round, typename S::Cells& cells,
                              Does&& does) {
  each_line<S>(rounds, round, [&](uint32_t index, uint32_t line) {
    TOWLINE_UNROLL
    for (uint32_t i = 0; i < S::kOthers; ++i)
      if (i + 1 < step.job.size) does(cells[index][i], step.other(i), line);
  });
}

// Stores a line for a rank; an odd rank's is not marked yet.
template <uint32_t kRanks, bool kOdd, uint32_t kAtOnce>
TOWLINE_DEVICE void put_line(const Step<kRanks, kOdd, kAtOnce>& step, uint32_t peer, uint32_t line,
                             const Words& words) {
  store_line(step.line(peer, step.job.rank, line), words, kOdd ? 0 : step.mark());
}
// Marks the lines that an odd rank stored: mark_all() calls mark_line for each. All threads of a warp.
template <uint32_t kRanks, bool kOdd, uint32_t kAtOnce>
TOWLINE_DEVICE void mark_line(const Step<kRanks, kOdd, kAtOnce>& step, uint32_t peer, uint32_t line) {
  if (has_mark())
    device::store_release(reinterpret_cast<uint64_t*>(step.line(peer, step.job.rank, line) + 120),
                          step.mark());
}
template <bool kOdd, class MarkAll>
TOWLINE_DEVICE void then_mark(MarkAll&& mark_all) {
  if constexpr (kOdd) {
    device::fence();
    warp_sync();
    mark_all();
  }
}

// Gives each other rank its piece: piece_for(peer). All loads of a round come before its stores, which would wait for them.
template <uint32_t kRanks, bool kOdd, class PieceFor>
TOWLINE_DEVICE void give_lines(const Step<kRanks, kOdd>& step, uint32_t most, PieceFor&& piece_for) {
  using S = Step<kRanks, kOdd>;
  const Rounds rounds = rounds_of<S>(most);
  for (uint32_t round = 0; round < rounds.count; ++round) {
    typename S::Cells cells;
    each_cell(step, rounds, round, cells, [&](Words& words, uint32_t peer, uint32_t line) {
      load_data<kOdd>(piece_for(peer), line, words);
    });
    each_cell(step, rounds, round, cells, [&](const Words& words, uint32_t peer, uint32_t line) {
      if (line < lines_in(piece_for(peer))) put_line(step, peer, line, words);
    });
    then_mark<kOdd>([&] {
      each_cell(step, rounds, round, cells, [&](const Words&, uint32_t peer, uint32_t line) {
        if (line < lines_in(piece_for(peer))) mark_line(step, peer, line);
      });
    });
  }
}

// Waits for the lines of a round; `lines_from(peer)`: how many that rank gives. All threads of a warp. False: one of them stopped.
template <uint32_t kRanks, bool kOdd, uint32_t kAtOnce, class LinesFrom>
TOWLINE_DEVICE bool take_lines(const Step<kRanks, kOdd, kAtOnce>& step, const Turn& turn,
                               const Rounds& rounds, uint32_t round, LinesFrom&& lines_from,
                               typename Step<kRanks, kOdd, kAtOnce>::Cells& cells, Stopped& stopped) {
  const Job& job = step.job;
  Waiter waiter;
  bool again = kOdd;
  for (;;) {
    each_cell(step, rounds, round, cells, [&](Words& words, uint32_t peer, uint32_t line) {
      if (line < lines_from(peer)) load_line(step.line(job.rank, peer, line), words);
    });
    uint32_t missing = job.size;
    each_cell(step, rounds, round, cells, [&](const Words& words, uint32_t peer, uint32_t line) {
      if (has_mark() && line < lines_from(peer) && words.word[kLineWords - 1] != step.mark()) missing = peer;
    });
    if (warp_all(missing == job.size)) {
      if (!again) return true;
      again = false;
      device::fence();
      continue;
    }
    // Only threads that wait stop, since they know for whom. Ranks at another operation are told by their signals.
    const bool stops_here = missing != job.size &&
                            stops(job, waiter, missing, signal_of(job, turn, missing), turn.epoch, stopped);
    if (!warp_all(!stops_here)) return false;
  }
}

// Adds up a line of all ranks, in their order.
template <class E, uint32_t kOthers>
TOWLINE_DEVICE Words add_line(const Job& job, const Words& own, const Words (&others)[kOthers]) {
  using Bits = typename E::Bits;
  constexpr uint32_t kLanes = kLineWords * 8 / sizeof(Bits);
  typename E::Sum sums[kLanes];
  Bits lanes[kLanes];
  TOWLINE_UNROLL
  for (uint32_t rank = 0; rank <= kOthers; ++rank) {
    if (rank >= job.size) break;
    Words words;
    TOWLINE_UNROLL
    for (uint32_t i = 0; i < kLineWords; ++i) {  // selects, which leave all in registers
      const uint64_t after = rank == 0 ? 0 : others[rank == 0 ? 0 : rank - 1].word[i];
      const uint64_t before = rank == kOthers ? 0 : others[rank == kOthers ? 0 : rank].word[i];
      words.word[i] = rank == job.rank ? own.word[i] : rank < job.rank ? before : after;
    }
    memcpy(lanes, words.word, sizeof lanes);
    TOWLINE_UNROLL
    for (uint32_t i = 0; i < kLanes; ++i)
      sums[i] = rank == 0 ? E::widen(lanes[i]) : sums[i] + E::widen(lanes[i]);
  }
  TOWLINE_UNROLL
  for (uint32_t i = 0; i < kLanes; ++i) lanes[i] = E::narrow(sums[i]);
  Words result;
  memcpy(result.word, lanes, sizeof lanes);
  return result;
}

// ---- Operations, as their namesakes in marked.h. Reductions are sums.

// A thread has read its words of every piece before it writes there, so an output may be an input.
template <class E, uint32_t kRanks, bool kOdd>
TOWLINE_DEVICE void run_lines(const Job& job, Turn& turn) {
  using S = Step<kRanks, kOdd>;
  Control& me = control_of(job, job.rank);
  const S step{job, turn.block, me.marked[turn.block]};
  const uint64_t begin = turn.block * job.slot * kLineBytes;
  const auto bytes = static_cast<uint32_t>(rest(job.bytes, begin, job.slot * kLineBytes));
  const bool parts = job.way == Way::kMarkedParts;
  const auto given = [&](uint32_t peer) { return Piece{job.in[parts ? peer : 0] + begin, bytes}; };
  const auto taken = [&](uint32_t peer) { return Piece{job.out[peer] + begin, bytes}; };
  const uint32_t lines = lines_in({0, bytes});
  give_lines(step, lines, given);
  show_marked(job, turn);
  const Rounds rounds = rounds_of<S>(lines);
  Stopped stopped;
  for (uint32_t round = 0; round < rounds.count; ++round) {
    typename S::Cells cells;
    Words own[S::kLines];
    each_line<S>(rounds, round,
                 [&](uint32_t index, uint32_t line) { load_data<kOdd>(given(job.rank), line, own[index]); });
    if (!take_lines(
            step, turn, rounds, round, [&](uint32_t) { return lines; }, cells, stopped))
      break;
    if constexpr (!std::is_same_v<E, NoElement>) {
      each_line<S>(rounds, round, [&](uint32_t index, uint32_t line) {
        store_data<kOdd>(taken(parts ? job.rank : 0), line, add_line<E>(job, own[index], cells[index]));
      });
    } else {
      each_line<S>(rounds, round, [&](uint32_t index, uint32_t line) {
        store_data<kOdd>(taken(job.rank), line, own[index]);
      });
      each_cell(step, rounds, round, cells, [&](const Words& words, uint32_t peer, uint32_t line) {
        store_data<kOdd>(taken(peer), line, words);
      });
    }
  }
  device::sync();
  let_next_begin();  // no thread waits any more
  if (device::thread() == 0) me.marked[turn.block] = step.count + 1;
  report(job, turn, stopped);
}

template <class E, uint32_t kRanks, bool kOdd>
TOWLINE_DEVICE void run_lines_two(const Job& job, Turn& turn) {
  using S = Step<kRanks, kOdd>;
  Control& me = control_of(job, job.rank);
  const S inputs{job, turn.block, me.marked[turn.block]};
  const S results{job, turn.block, inputs.count + 1};
  const uint64_t all = (job.bytes + kLineBytes - 1) / kLineBytes;
  const uint64_t each = (all + job.size - 1) / job.size * kLineBytes;
  const uint64_t begin = turn.block * job.slot * kLineBytes;
  const auto piece_in = [&](uint64_t data, uint32_t peer) {
    const uint64_t of_part = rest(job.bytes, peer * each, each);
    const uint64_t bytes = rest(of_part, begin, job.slot * kLineBytes);
    return Piece{data + peer * each + begin, static_cast<uint32_t>(bytes)};
  };
  const uint32_t most = lines_in(piece_in(0, 0));  // later parts are no larger
  give_lines(inputs, most, [&](uint32_t peer) { return piece_in(job.in[0], peer); });
  show_marked(job, turn);

  const uint32_t lines = lines_in(piece_in(0, job.rank));
  bool failed = false;
  Stopped stopped;
  Rounds rounds = rounds_of<S>(lines);
  for (uint32_t round = 0; round < rounds.count && !failed; ++round) {
    typename S::Cells cells;
    Words own[S::kLines];
    each_line<S>(rounds, round, [&](uint32_t index, uint32_t line) {
      load_data<kOdd>(piece_in(job.in[0], job.rank), line, own[index]);
    });
    failed = !take_lines(
        inputs, turn, rounds, round, [&](uint32_t) { return lines; }, cells, stopped);
    if (failed) break;
    each_line<S>(rounds, round, [&](uint32_t index, uint32_t line) {
      const Words sum = add_line<E>(job, own[index], cells[index]);
      const auto each_other = [&](auto&& does) {
        for (uint32_t i = 1; i < job.size && line < lines; ++i) does((job.rank + i) % job.size);
      };
      each_other([&](uint32_t peer) { put_line(results, peer, line, sum); });
      then_mark<kOdd>([&] { each_other([&](uint32_t peer) { mark_line(results, peer, line); }); });
      store_data<kOdd>(piece_in(job.out[0], job.rank), line, sum);
    });
  }

  rounds = rounds_of<S>(most);
  const auto lines_from = [&](uint32_t peer) { return lines_in(piece_in(0, peer)); };
  for (uint32_t round = 0; round < rounds.count && !failed; ++round) {
    typename S::Cells cells;
    failed = !take_lines(results, turn, rounds, round, lines_from, cells, stopped);
    if (failed) break;
    each_cell(results, rounds, round, cells, [&](const Words& words, uint32_t peer, uint32_t line) {
      store_data<kOdd>(piece_in(job.out[0], peer), line, words);
    });
  }
  device::sync();
  let_next_begin();  // no thread waits any more
  if (device::thread() == 0) me.marked[turn.block] = inputs.count + 2;
  report(job, turn, stopped);
}

// Some of this rank's data does not start and end at multiples of 8.
TOWLINE_DEVICE bool is_odd(const Job& job) {
  uint64_t all = job.bytes | job.in[0] | job.out[0];
  if (job.way != Way::kMarkedTwo)
    for (uint32_t peer = 1; peer < job.size; ++peer) all |= job.in[peer] | job.out[peer];
  return (all & 7) != 0;
}

}  // namespace towline::collectives::gpu
