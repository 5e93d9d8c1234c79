// Metadata frames and serialized descriptor lists from strangers: refused or read, and what was read is
// written the same way again.
#include <cstdint>
#include <cstdlib>
#include <string>

#include <nixl_descriptors.h>
#include <serdes/serdes.h>
#include "../src/frame.h"
#include "support/fuzz_accepted.h"

namespace {

using towline::nixl::Frame;

void try_frame(const std::string& bytes) {
  Frame frame;
  if (!towline::nixl::decode(bytes, frame).empty()) return;
  towline::fuzz::accepted();
  Frame again;
  if (!towline::nixl::decode(towline::nixl::encode(frame), again).empty() || !(frame == again)) std::abort();
}

Frame sample_frame() {
  Frame frame;
  frame.name = "prefill-0";
  frame.addresses = true;
  frame.partial = true;
  frame.backends = {"UCX", "LIBFABRIC"};
  frame.ranges = {{DRAM_SEG, 0, 0x1000, 4096}, {VRAM_SEG, 3, 0x7f0000000000, 1 << 20}};
  frame.blob = "opaque";
  return frame;
}

std::string sample_list() {
  nixl_reg_dlist_t list(VRAM_SEG);
  list.addDesc(nixlBlobDesc(0x1000, 4096, 0, "ro:/data/kv.bin"));
  list.addDesc(nixlBlobDesc(0x3000, 8192, 1, ""));
  nixlSerDes writer;
  if (list.serialize(&writer) != NIXL_SUCCESS) std::abort();
  return writer.exportStr();
}

// The input as changes of what is right: pairs of a place and a value for it; an odd last byte cuts the end.
std::string changed(std::string bytes, const uint8_t* data, size_t size) {
  for (size_t i = 0; i + 1 < size && !bytes.empty(); i += 2)
    bytes[data[i] % bytes.size()] = static_cast<char>(data[i + 1]);
  if (size % 2 == 1) bytes.resize(data[size - 1] % (bytes.size() + 1));
  return bytes;
}

template <class List>
void try_list(const std::string& bytes) {
  nixlSerDes reader;
  if (reader.importStr(bytes) != NIXL_SUCCESS) return;
  const List list(&reader);
  nixlSerDes writer;
  if (list.serialize(&writer) != NIXL_SUCCESS) std::abort();
  nixlSerDes second;
  if (second.importStr(writer.exportStr()) != NIXL_SUCCESS) std::abort();
  const List again(&second);
  if (!(list == again)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // Refusals are logged as errors; that is not what is tested here.
  static const int quiet = setenv("NIXL_LOG_LEVEL", "FATAL", 1);
  (void)quiet;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  try_frame(bytes);
  // With the right checksum, so that what lies behind it is tried.
  std::string frame = changed(towline::nixl::encode(sample_frame()), data, size);
  towline::nixl::seal(frame);
  try_frame(frame);
  const std::string list = changed(sample_list(), data, size);
  try_list<nixl_xfer_dlist_t>(list);
  try_list<nixl_reg_dlist_t>(list);
  try_list<nixl_xfer_dlist_t>(bytes);
  try_list<nixl_reg_dlist_t>(bytes);
  return 0;
}
