// Shared by the contenders of a storage bench: one file, this process's memory, and the cells.
#pragma once

#include <string>
#include <vector>

#include "p2p/contender.h"
#include "support/process.h"

namespace bench {

// A file of `span` bytes, all of it written; removed at the end. In the page cache, or by direct I/O past it.
class Store {
 public:
  Store(const std::string& folder, std::size_t span, std::size_t fill_bytes, bool direct);
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  const std::string& path() const { return path_; }
  int fd() const { return fd_; }
  bool direct() const { return direct_; }
  std::size_t span() const { return span_; }
  std::byte* memory() const { return memory_; }

  void stamp(const std::vector<std::uint64_t>& blocks, std::size_t block, std::uint64_t epoch);
  std::size_t count_wrong(const std::vector<std::uint64_t>& blocks, std::size_t block, std::uint64_t epoch);

 private:
  template <class Work>
  void with_mapping(Work work);

  std::string path_;
  std::size_t span_;
  bool direct_;
  int fd_ = -1;
  Memory pages_;
  std::byte* memory_ = nullptr;  // within them, on a huge page's boundary
};

// A contender that moves between Store::memory() and the file. Only the first 64 MiB of a cell are checked.
class StoreContender : public Contender {
 public:
  StoreContender(std::string name, Store& store) : Contender(std::move(name)), store_(store) {}
  void setup() override {}
  void prepare(const Cell& cell, const BlockLists& lists) final;
  double run(std::uint64_t iterations) override;
  void stamp_source(std::uint64_t epoch) override;
  std::size_t verify(std::uint64_t epoch) override;

 protected:
  virtual void prepare_cell() {}
  virtual void run_once() {}

  Store& store() const { return store_; }
  const Cell& cell() const { return cell_; }
  const BlockLists& lists() const { return lists_; }
  // Those that are checked.
  std::vector<std::uint64_t> checked(const std::vector<std::uint64_t>& blocks) const;

 private:
  Store& store_;
  Cell cell_;
  BlockLists lists_;
};

void add_limits(Store& store, Contenders& out);
void add_fio(Store& store, Contenders& out);
void add_nixl_files(const std::string& python, const std::string& script, Store& store, Contenders& out);
void add_towline(Store& store, const std::vector<std::string>& engines, Contenders& out);

}  // namespace bench
