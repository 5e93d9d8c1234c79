// The work of one launch, in the layout of host and device: a plan's pieces, cut into chunks that a few threads
// of a warp copy together. The same functions find a chunk in the kernel and in the reference that tests run
// on the host.
//
// Positions are bytes of the plan; a job moves [begin, end) of it. Three forms:
//   kStrided  every piece's addresses are computed from nested strides, one set for each side: nothing is uploaded
//   kPairs    pieces of one length, their addresses in a list of Pair
//   kPieces   pieces of any length, in a list of Piece, none longer than kLongestPiece; a warp (32 threads) each
#pragma once

#include <stdint.h>

#ifdef __CUDACC__
#define TOWLINE_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define TOWLINE_HOST_DEVICE inline
#endif

namespace towline::cuda {

inline constexpr uint32_t kSideDimensions = 5;
inline constexpr uint32_t kChunkBytes = 4096;     // of one group of 32 threads: eight loads of 16 bytes each
inline constexpr uint32_t kBytesPerThread = 128;  // so that a thread has eight loads in flight
inline constexpr uint32_t kThreads = 1024;        // of a block
inline constexpr uint64_t kLongestPiece = 16384;

enum class Form : uint32_t { kStrided = 0, kPairs = 1, kPieces = 2 };

struct Pair {
  uint64_t to;
  uint64_t from;
};

struct Piece {
  uint64_t to;
  uint64_t from;
  uint64_t position;
  uint64_t length;
};

// Addresses of blocks first, first + step, ... of one extent.
struct Side {
  uint64_t address;
  uint64_t first;
  uint64_t step;
  uint64_t count[kSideDimensions];  // outermost first
  uint64_t stride[kSideDimensions];
  uint32_t dimensions;
  uint32_t reserved;
};

struct CopyJob {
  uint64_t begin;
  uint64_t end;
  uint64_t first_piece;  // the pieces that hold [begin, end)
  uint64_t pieces;
  uint64_t piece_bytes;  // not of kPieces
  uint64_t list;         // address of the whole plan's Pair or Piece array, where the form has one
  uint32_t chunk_bytes;  // not of kPieces
  uint32_t chunks_per_piece;
  uint32_t threads;  // that copy one chunk together: a power of two up to 32
  Form form;
  uint32_t aligned;        // every address and length of a whole chunk, and begin and end, divide by 16
  uint32_t block_threads;  // 0: kThreads
  uint64_t to_shift;       // is added to every address that is written
  Side to;
  Side from;
};

struct Chunk {
  uint64_t to;
  uint64_t from;
  uint64_t bytes;  // 0: nothing of it lies in [begin, end)
};

TOWLINE_HOST_DEVICE uint64_t address_of(const Side& side, uint64_t piece) {
  uint64_t index = side.first + piece * side.step;
  uint64_t address = side.address;
#ifdef __CUDACC__
#pragma unroll
#endif
  for (uint32_t d = kSideDimensions - 1; d > 0; --d) {
    if (d >= side.dimensions) continue;
    const uint64_t count = side.count[d];
    uint64_t outer;
    uint64_t inner;
    if (((index | count) >> 32) == 0) {
      const auto narrow = static_cast<uint32_t>(index);
      outer = narrow / static_cast<uint32_t>(count);
      inner = narrow - static_cast<uint32_t>(outer) * static_cast<uint32_t>(count);
    } else {
      outer = index / count;
      inner = index - outer * count;
    }
    address += inner * side.stride[d];
    index = outer;
  }
  return side.dimensions == 0 ? address : address + index * side.stride[0];
}

TOWLINE_HOST_DEVICE uint64_t chunks_of(const CopyJob& job) { return job.pieces * job.chunks_per_piece; }

inline uint32_t most_threads(const CopyJob& job) {
  return job.block_threads != 0 ? job.block_threads : kThreads;
}

// Threads per block for this number of blocks: a small job starts sooner with fewer.
inline uint32_t threads_of_block(const CopyJob& job, uint32_t blocks) {
  const uint64_t useful = (chunks_of(job) * job.threads + 31) / 32 * 32;
  const uint32_t most = most_threads(job);
  return blocks != 1 || useful > most ? most : useful < 32 ? 32 : static_cast<uint32_t>(useful);
}

TOWLINE_HOST_DEVICE Chunk clip(const CopyJob& job, uint64_t to, uint64_t from, uint64_t position,
                               uint64_t bytes) {
  const uint64_t skip = position < job.begin ? job.begin - position : 0;
  const uint64_t end = position + bytes > job.end ? job.end - position : bytes;
  if (position >= job.end || skip >= end) return {to, from, 0};
  return {to + skip, from + skip, end - skip};
}

TOWLINE_HOST_DEVICE Chunk chunk_of(const CopyJob& job, const Piece& piece) {
  return clip(job, piece.to + job.to_shift, piece.from, piece.position, piece.length);
}

template <Form kForm>
TOWLINE_HOST_DEVICE Chunk find_chunk(const CopyJob& job, uint64_t index) {
  if constexpr (kForm == Form::kPieces) {
    return chunk_of(job, reinterpret_cast<const Piece*>(job.list)[job.first_piece + index]);
  } else {
    uint64_t piece = index;
    uint64_t offset = 0;
    if (job.chunks_per_piece != 1) {
      if ((index >> 32) == 0)
        piece = static_cast<uint32_t>(index) / job.chunks_per_piece;
      else
        piece = index / job.chunks_per_piece;
      offset = (index - piece * job.chunks_per_piece) * job.chunk_bytes;
    }
    piece += job.first_piece;
    const uint64_t left = job.piece_bytes - offset;
    const uint64_t bytes = left < job.chunk_bytes ? left : job.chunk_bytes;
    const uint64_t position = piece * job.piece_bytes + offset;
    if constexpr (kForm == Form::kPairs) {
      const Pair pair = reinterpret_cast<const Pair*>(job.list)[piece];
      return clip(job, pair.to + job.to_shift + offset, pair.from + offset, position, bytes);
    } else {
      return clip(job, address_of(job.to, piece) + job.to_shift + offset,
                  address_of(job.from, piece) + offset, position, bytes);
    }
  }
}

// A valve's words (device.h). A kernel of one thread goes before each copy in the stream: it counts the run,
// tells the host, and only then looks whether the valve is closed. So either the host, having closed it, sees
// the run, or the run sees it closed.
struct ValveWords {  // in GPU memory
  uint64_t runs;
  uint64_t refused;
  uint32_t open;      // for the current run
  uint32_t arrivals;  // 0 before and after a run
};
struct ValveReport {  // in pinned memory
  uint64_t closed;    // written by the host, the rest by the GPU
  uint64_t begun;
  uint64_t ended;
  uint64_t refused;
};

// The words by which a kernel says that it is over.
struct Completion {
  uint64_t arrivals;  // address of a 32-bit counter in device memory, 0 before and after
  uint64_t flag;      // address of a 64-bit word that the host watches
  uint64_t value;     // to be put there
  uint64_t valve;  // address of a valve's words: its report is told instead, and `arrivals` is its own; or 0
  uint64_t report;
};

}  // namespace towline::cuda
