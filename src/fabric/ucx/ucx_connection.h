// One connection over UCX: a worker of its own with one endpoint. So destroying the worker ends exactly one
// connection, as it does with a queue pair, and nothing is placed over it any more.
//
// Everything goes in active messages of UCX, with a header of ours. Over transports of software, writes and reads do
// too: the owner checks what they name and copies them. UCX's own operations on remote memory check neither
// ranges nor rights there, and UCX 1.13 ends the process of an owner whose peer is gone before it could answer. Over RDMA
// transports (`by_messages` false) UCX's operations are used: they are complete when a flush of the endpoint is, and their
// remote keys are blobs that do not fit into a descriptor, so the first request that uses a registration asks its owner
// for its blob and waits.
//
// A message that the peer acknowledges has arrived: UCX's completions say only that a buffer is free.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "fabric/domain.h"
#include "fabric/sequence_window.h"
#include "fabric/ucx/ucx_library.h"

namespace towline::fabric {

// Of a write, or of reads, in one message.
inline constexpr uint64_t kUcxChunkBytes = 32 << 10;
inline constexpr uint64_t kUcxLargeChunkBytes = 1 << 20;  // between ends that both take large messages

struct UcxRegistered {
  uint64_t address = 0;
  uint64_t bytes = 0;
  bool readable = false;  // by peers
  bool writable = false;
  ucp_mem_h memory = nullptr;  // null: messages do
  std::vector<uint8_t> blob;   // empty: not for peers, or messages do
};

// Connections call their domain through this.
class UcxOwner {
 public:
  virtual ~UcxOwner() = default;
  virtual void tell(const Completion& completion) noexcept = 0;
  // Null: nothing has that number.
  virtual const UcxRegistered* find(uint64_t key) const noexcept = 0;
};

class UcxConnection {
 public:
  struct Options {
    bool tells_failures = true;  // its transports notice that a peer has died
    bool by_messages = true;     // writes and reads
    bool takes_large = false;    // its transport receives a message of kUcxLargeChunkBytes in one piece
  };
  // Throws Error.
  UcxConnection(UcxOwner& owner, ucp_context_h context, uint32_t number, const Options& options);
  ~UcxConnection() { stop(); }
  UcxConnection(const UcxConnection&) = delete;
  UcxConnection& operator=(const UcxConnection&) = delete;

  std::vector<uint8_t> address() const;  // throws Error
  void connect(std::span<const uint8_t> other_end);
  void stop() noexcept;
  bool stopped() const noexcept { return worker_ == nullptr; }
  int event_fd() const noexcept { return event_fd_; }

  std::size_t post(const WorkRequest* requests, std::size_t count) noexcept;
  std::size_t post_receives(const ReceiveRequest* requests, std::size_t count) noexcept;
  void progress() noexcept;
  // False: there is something to progress.
  bool arm() noexcept;
  // The peer reads from this registration, or has asked for it.
  bool serves(uint64_t key) const noexcept;
  void down(Status status) noexcept;

 private:
  static constexpr unsigned kMessage = 1;         // of UCX's active messages
  static constexpr std::size_t kMaxAsked = 1024;  // by the peer, of each kind
  static constexpr std::size_t kMaxUnsent = 4096;
  static constexpr std::size_t kMaxBlobBytes = 4096;
  static constexpr uint32_t kMaxServing = 64;
  static constexpr std::size_t kMaxTogether = 8;   // reads that one message answers
  static constexpr std::size_t kMaxAskedFor = 16;  // reads that one message asks for

  enum class Kind : uint32_t {
    kRecord,
    kWrite,
    kRead,
    kReadData,
    kAcknowledge,
    kRefuse,
    kAskBlob,
    kBlob,
    kReads,  // several reads: their headers are its data. This one and the next go only to peers that take them
    kReadsData,  // answers several reads; Parts follow the header
  };
  // The header of every message, as it lies in memory.
  struct Header {
    uint64_t number = 0;  // of records and writes, from 1 on; of a read; of all messages that have come
    uint64_t key = 0;
    uint64_t place = 0;  // an address at the owner; in a read, an offset
    uint32_t length = 0;
    Kind kind = Kind::kRecord;
  };
  struct Part {  // of a kReadsData
    uint32_t number = 0;
    uint32_t length = 0;
  };
  struct Entry {  // a request under way
    uint64_t cookie = 0;
    uint64_t flush_mark = 0;  // complete once so many operations of UCX are,
    uint64_t number = 0;      // and these messages have arrived,
    uint32_t read = 0;        // and this read, if not 0, has ended
    bool signalled = false;
  };
  struct Key {
    ucp_rkey_h key = nullptr;  // null: asked for
  };
  struct Read {  // ours
    uint64_t local = 0;
    uint32_t length = 0;
    uint32_t arrived = 0;
    uint32_t next_free = 0;  // a number, 0: none
    bool used = false;
  };
  struct Ask {  // a read of the peer's
    Header wanted;
    uint32_t sent = 0;
  };
  struct Outgoing {  // a message that UCX has not sent yet
    UcxConnection* connection = nullptr;
    Header header;
    std::array<Part, kMaxTogether> parts;  // behind the header
    std::array<ucp_dt_iov_t, kMaxTogether> pieces;
    std::array<Header, kMaxAskedFor> reads;  // of a kReads: `asked_for`
    std::size_t asked_for = 0;
    uint64_t reads_from = 0;  // a registration of ours
    std::vector<uint8_t> bytes;
    bool busy = false;
  };

  static ucs_status_t on_message(void* self, const void* header, size_t header_bytes, void* data,
                                 size_t bytes, const ucp_am_recv_param_t* parameters);
  static void on_error(void* self, ucp_ep_h endpoint, ucs_status_t status);
  static void on_flushed(void* request, ucs_status_t status, void* self);
  static void on_sent(void* request, ucs_status_t status, void* outgoing);

  void take(const Header& header, std::span<const uint8_t> parts, std::span<const uint8_t> data);
  void take_record(const Header& header, std::span<const uint8_t> data);
  void take_write(const Header& header, std::span<const uint8_t> data);
  void take_read_data(const Header& header, std::span<const uint8_t> data) noexcept;
  void take_read(const Header& header);
  void take_reads(std::span<const uint8_t> data);
  void take_reads_data(std::span<const uint8_t> parts, std::span<const uint8_t> data) noexcept;
  void take_key(uint64_t key, std::span<const uint8_t> blob);
  void number_came(uint64_t number) noexcept;
  const UcxRegistered* allowed(const Header& header, bool write, Status& why) const noexcept;
  bool ready_for(const WorkRequest& request);
  void issue(const WorkRequest& request);
  void issue_by_messages(const WorkRequest& request, Entry& entry);
  void issue_waiting();
  // Collects this side's reads; send_reads() sends them.
  void ask(const Header& read);
  void send_reads() noexcept;
  void serve();
  // Answers the first of the peer's reads in one message, if several are whole, small and of one registration. The first
  // one must be allowed.
  bool serve_together();
  void refuse(const Header& refused, Status why);
  void take_refusal(const Header& header);
  // `data` stays until it is sent.
  void send(const Header& header, const void* data = nullptr, std::size_t bytes = 0, uint64_t reads_from = 0,
            std::vector<uint8_t> kept = {});
  Outgoing& outgoing_for(const Header& header, uint64_t reads_from);
  // `data`: `count` bytes, or with `parts` that many pieces.
  void hand_over(Outgoing& outgoing, const void* data, std::size_t count, std::size_t parts) noexcept;
  void flush() noexcept;
  void complete() noexcept;
  void check(ucs_status_ptr_t result) noexcept;
  void forget_keys() noexcept;

  UcxOwner& owner_;
  UcxLibrary& ucx_;
  const uint32_t number_;
  const Options options_;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  int event_fd_ = -1;
  bool down_ = false;
  bool reads_together_ = false;  // the peer takes kReads and kReadsData
  uint64_t chunk_bytes_ = kUcxChunkBytes;
  Outgoing* asking_ = nullptr;       // a kReads that is being filled
  std::deque<WorkRequest> waiting_;  // for a key
  std::deque<Entry> issued_;
  std::deque<ReceiveRequest> receives_;
  std::deque<Outgoing> outgoing_;  // never shrinks; in use while UCX has them
  std::vector<Outgoing*> free_;
  std::vector<Read> reads_;  // by number - 1
  uint32_t free_read_ = 0;   // a number, 0: none
  std::deque<Ask> asks_;
  std::unordered_map<uint64_t, Key> keys_;
  std::vector<uint64_t> asked_;  // blobs, not answered yet
  uint64_t moves_issued_ = 0;    // operations of UCX
  uint64_t moves_flushed_ = 0;
  uint64_t flush_mark_ = 0;
  bool flushing_ = false;
  uint64_t numbered_ = 0;  // the last record's or write's
  uint64_t arrived_ = 0;   // those up to here are at the peer
  SequenceWindow came_;    // those of the peer
  uint64_t acknowledged_ = 1;
  uint32_t serving_ = 0;  // messages of reads that UCX has not sent yet
};

}  // namespace towline::fabric
