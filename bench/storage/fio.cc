// fio at random blocks of the same file and size, with as many in flight as the cell has blocks, at most 256.
// It measures for a time of its own; bytes are its own too, so that nothing is checked.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <stdexcept>

#include "store.h"

namespace bench {
namespace {

constexpr int kMilliseconds = 200;

class Fio final : public StoreContender {
 public:
  Fio(const std::string& engine, Store& store) : StoreContender("fio_" + engine, store), engine_(engine) {}
  bool by_time() const override { return true; }
  bool supports(const Cell& cell) const override {
    // Without a queue it is the same whatever the number, and what is buffered libaio does at once.
    if (engine_ == "psync") return cell.count == 1;
    return engine_ == "io_uring" || store().direct();
  }
  double run(std::uint64_t iterations) override {
    const std::string command = fmt::format(
        "fio --name=bench --filename={} --size={} --rw={} --bs={} --ioengine={} --iodepth={} --direct={} "
        "--time_based --runtime={}ms --overwrite=1 --invalidate=0 --norandommap --allow_file_create=0 "
        "--output-format=json --eta=never 2>&1",
        store().path(), store().span(), cell().op == Op::kWrite ? "randwrite" : "randread", cell().block,
        engine_, std::min<std::size_t>(cell().count, 256), store().direct() ? 1 : 0, kMilliseconds);
    const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
    if (pipe == nullptr) throw std::runtime_error("fio can't be started");
    std::string text;
    char buffer[4096];
    while (const std::size_t count = std::fread(buffer, 1, sizeof buffer, pipe.get()))
      text.append(buffer, count);
    const std::size_t begin = text.find('{');
    const Json answer = Json::parse(text.substr(begin == std::string::npos ? 0 : begin), nullptr, false);
    if (answer.is_discarded()) throw std::runtime_error("fio: " + text.substr(0, 200));
    const Json& side = answer.at("jobs").at(0).at(cell().op == Op::kWrite ? "write" : "read");
    const double rate = side.at("bw_bytes");
    if (rate == 0) throw std::runtime_error("fio moved nothing");
    return static_cast<double>(iterations * cell().bytes()) / rate;
  }
  void stamp_source(std::uint64_t) override {}
  std::size_t verify(std::uint64_t) override { return 0; }

 private:
  std::string engine_;
};

}  // namespace

void add_fio(Store& store, Contenders& out) {
  for (const char* engine : {"io_uring", "libaio", "psync"})
    out.push_back(std::make_unique<Fio>(engine, store));
}

}  // namespace bench
