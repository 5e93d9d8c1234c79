// all_reduce with RMSNorm in lines (lines.h): what norm_marked.h does, between GPUs that NVLink joins. Every rank gives its input to
// all others, and all normalise all rows, each in one block or in several that add up what they have of the row (row_sum.h). A block's
// lines of its row stay in registers from their sum to the end, so that nothing is read again; and what does not depend on other ranks is
// loaded before they are waited for.
#pragma once

#include "collectives/gpu/lines.h"
#include "collectives/gpu/norm_marked.h"

namespace towline::collectives::gpu {

// The lines of a row that a block with so many threads can have: in registers, and in memory.
// What a thread holds of more lines does not fit into registers.
constexpr uint32_t lines_of_thread(uint32_t ranks) { return ranks <= 2 ? 3 : ranks <= 4 ? 2 : 1; }
constexpr uint32_t most_lines_of_part(uint32_t size, uint32_t threads) {
  const uint32_t held = threads / kGpuLineThreads * lines_of_thread(size);
  return held < most_lines(size) ? held : most_lines(size);
}

// kMost: lines of a thread.
template <class E, uint32_t kRanks, bool kOdd, uint32_t kMost>
struct LineRow {
  using S = Step<kRanks, kOdd, kMost>;
  using Bits = typename E::Bits;
  static constexpr uint32_t kLanes = kLineWords * 8 / sizeof(Bits);
#if defined(__CUDA_ARCH__)
  static constexpr uint32_t kHeld = kMost;
#else
  static constexpr uint32_t kHeld = most_lines_of_part(kRanks, kThreads);  // the model's block has one thread
#endif
  static constexpr uint32_t kRounds = (kHeld + S::kLines - 1) / S::kLines;

  // What a thread has of its row.
  struct Held {
    Words sum[kRounds * S::kLines];  // at first, this rank's input
    Words residual[kRounds * S::kLines];
    Words weight[kRounds * S::kLines];
  };

  const S step;
  const Piece input;
  const Piece residual;
  const Piece weight;
  const Piece output;
  const Rounds rounds;

  // does(held, line) with each line that this thread has a part of.
  template <class Does>
  TOWLINE_DEVICE void each(Does&& does) const {
    TOWLINE_UNROLL
    for (uint32_t round = 0; round < kRounds; ++round) {
      if (round >= rounds.count) break;
      each_line<S>(rounds, round,
                   [&](uint32_t index, uint32_t line) { does(round * S::kLines + index, line); });
    }
  }
  TOWLINE_DEVICE bool has(uint32_t line, uint32_t word) const {
    const uint32_t at = first_word() + word;
    return at != 15 && line * static_cast<uint32_t>(kLineBytes) + at * 8 < input.bytes;
  }

  TOWLINE_DEVICE void give(Held& held) const {
    const Job& job = step.job;
    each([&](uint32_t k, uint32_t line) { load_data<kOdd>(input, line, held.sum[k]); });
    if (job.residual != 0)
      each([&](uint32_t k, uint32_t line) { load_data<kOdd>(residual, line, held.residual[k]); });
    if (job.weight != 0)
      each([&](uint32_t k, uint32_t line) { load_data<kOdd>(weight, line, held.weight[k]); });
    const uint32_t lines = lines_in(input);
    const auto each_other = [&](uint32_t line, auto&& does) {
      TOWLINE_UNROLL
      for (uint32_t i = 0; i < S::kOthers; ++i)
        if (i + 1 < job.size && line < lines) does(step.other(i));
    };
    each([&](uint32_t k, uint32_t line) {
      each_other(line, [&](uint32_t peer) { put_line(step, peer, line, held.sum[k]); });
    });
    then_mark<kOdd>([&] {
      each([&](uint32_t, uint32_t line) {
        each_other(line, [&](uint32_t peer) { mark_line(step, peer, line); });
      });
    });
  }

  // Adds what the others gave, in the order of their ranks, and the residual. Adds to `squares`. All threads of a warp. False: failed.
  TOWLINE_DEVICE bool take(const Turn& turn, Held& held, float& squares, Stopped& stopped) const {
    const Job& job = step.job;
    const uint32_t lines = lines_in(input);
    TOWLINE_UNROLL
    for (uint32_t round = 0; round < kRounds; ++round) {
      if (round >= rounds.count) break;
      typename S::Cells cells;
      if (!take_lines(
              step, turn, rounds, round, [&](uint32_t) { return lines; }, cells, stopped))
        return false;
      each_line<S>(rounds, round, [&](uint32_t index, uint32_t line) {
        const uint32_t k = round * S::kLines + index;
        held.sum[k] = add_line<E>(job, held.sum[k], cells[index]);
        add_residual(line, held.sum[k], held.residual[k], squares);
      });
    }
    return true;
  }
  TOWLINE_DEVICE void add_residual(uint32_t line, Words& sum, const Words& added, float& squares) const {
    Bits lanes[kLanes];
    Bits more[kLanes];
    memcpy(lanes, sum.word, sizeof lanes);
    memcpy(more, added.word, sizeof more);
    TOWLINE_UNROLL
    for (uint32_t i = 0; i < kLanes; ++i) {
      if (step.job.residual != 0) lanes[i] = with_residual<E>(lanes[i], more[i]);
      const float value = E::widen(lanes[i]);
      if (has(line, i * static_cast<uint32_t>(sizeof(Bits)) / 8)) squares += value * value;
    }
    memcpy(sum.word, lanes, sizeof lanes);
  }
  TOWLINE_DEVICE void keep(const Held& held) const {
    if (step.job.residual == 0) return;
    each([&](uint32_t k, uint32_t line) { store_data<kOdd>(residual, line, held.sum[k]); });
  }

  TOWLINE_DEVICE void normalize(const Held& held, float scale) const {
    each([&](uint32_t k, uint32_t line) {
      Bits lanes[kLanes];
      Bits weights[kLanes];
      memcpy(lanes, held.sum[k].word, sizeof lanes);
      memcpy(weights, held.weight[k].word, sizeof weights);
      TOWLINE_UNROLL
      for (uint32_t i = 0; i < kLanes; ++i) lanes[i] = normalized<E>(step.job, lanes[i], scale, weights[i]);
      Words words;
      memcpy(words.word, lanes, sizeof lanes);
      store_data<kOdd>(output, line, words);
    });
  }
};

// A thread stores to a word only after it has read it, so outputs may be inputs.
template <class E, uint32_t kRanks, bool kOdd, uint32_t kMost>
TOWLINE_DEVICE void run_line_row(const Job& job, Turn& turn, Scratch& scratch) {
  using Row = LineRow<E, kRanks, kOdd, kMost>;
  Control& me = control_of(job, job.rank);
  const uint64_t row_bytes = row_bytes_of(job, sizeof(typename E::Bits));
  const RowBlocks blocks = row_blocks(job, turn.block);
  const uint64_t each = job.slot * kLineBytes;
  const uint64_t of_row = blocks.part * each;
  const auto bytes = static_cast<uint32_t>(rest(row_bytes, of_row, each));
  const uint64_t begin = blocks.first / job.parts * row_bytes + of_row;
  const Row row{typename Row::S{job, turn.block, me.marked[turn.block]},
                {job.in[0] + begin, bytes},
                {job.residual + begin, bytes},
                {job.weight + of_row, bytes},
                {job.out[0] + begin, bytes},
                rounds_of<typename Row::S>(lines_in({0, bytes}))};
  typename Row::Held held = {};
  row.give(held);
  show_marked(job, turn);
  await_cluster(job);
  float squares = 0;
  Stopped stopped;
  bool failed = !row.take(turn, held, squares, stopped);
  const bool gave_up = failed;
  const float scale =
      scale_of(job, sum_of_row<false>(job, turn, blocks, squares, failed, stopped, scratch, [&] {
                 if (!gave_up) row.keep(held);
               }));
  if (!failed) row.normalize(held, scale);
  if (device::thread() == 0) me.marked[turn.block] = row.step.count + 1;
  report(job, turn, stopped);
}

template <class E, uint32_t kRanks>
TOWLINE_DEVICE void run_line_norm(const Job& job, Scratch& scratch, uint32_t block, uint32_t blocks) {
  run_any_norm_row(job, scratch, block, blocks, [&](auto odd, Turn& turn) {
    constexpr bool kOdd = decltype(odd)::value;
    if (!kOdd && job.slot <= device::threads() / kLineThreads)
      return run_line_row<E, kRanks, false, 1>(job, turn, scratch);
    run_line_row<E, kRanks, kOdd, lines_of_thread(kRanks)>(job, turn, scratch);
  });
}

}  // namespace towline::collectives::gpu
