// Runs a fuzzer without libFuzzer: every file of the corpus folder, then a fixed number of seeded mutations
// of them, so that every build and every compiler takes a sample of the fuzzing. The input that breaks is
// named by seed and number, and written beside the program.
//
// The corpus is tested too: there is one, and each of its files gets past the first checks
// (tests/support/fuzz_accepted.h), unless its name begins with "refused".
//
//   <fuzzer> [corpus folder or file]... [--runs=N] [--seed=S]

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {
uint64_t accepted = 0;
}
extern "C" void towline_fuzz_accepted() { ++accepted; }

namespace {

using Bytes = std::vector<uint8_t>;

constexpr size_t kMaxLength = 4096;

// The state that the signal handler may use: the input under test.
const uint8_t* current_data = nullptr;
size_t current_size = 0;

void save_current_input(int signal) {
  const int file = open("fuzz_failure.bin", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file >= 0) {
    [[maybe_unused]] const ssize_t written = write(file, current_data, current_size);
    close(file);
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void run_one(const Bytes& input) {
  // An exact copy on the heap, so that reading past the end is seen by AddressSanitizer.
  const Bytes exact(input.begin(), input.end());
  current_data = exact.data();
  current_size = exact.size();
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

Bytes read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void mutate(Bytes& bytes, std::mt19937_64& random) {
  const auto below = [&](size_t bound) { return bound == 0 ? 0 : static_cast<size_t>(random() % bound); };
  switch (below(6)) {
    case 0:  // flip a bit
      if (!bytes.empty()) bytes[below(bytes.size())] ^= static_cast<uint8_t>(1U << below(8));
      break;
    case 1: {  // put an extreme value where a length may stand
      static constexpr uint8_t kExtremes[] = {0x00, 0x01, 0x7f, 0x80, 0xff};
      const uint8_t value = kExtremes[below(std::size(kExtremes))];
      const size_t width = size_t{1} << below(4);
      const size_t at = below(bytes.size());
      for (size_t i = at; i < bytes.size() && i < at + width; ++i) bytes[i] = value;
      break;
    }
    case 2:  // cut the end
      bytes.resize(below(bytes.size() + 1));
      break;
    case 3:  // grow
      for (size_t i = below(64); i > 0 && bytes.size() < kMaxLength; --i) {
        bytes.push_back(static_cast<uint8_t>(random()));
      }
      break;
    case 4:  // drop a byte
      if (!bytes.empty()) bytes.erase(bytes.begin() + static_cast<ptrdiff_t>(below(bytes.size())));
      break;
    default:  // copy a piece over another
      if (bytes.size() > 1) {
        const size_t from = below(bytes.size());
        const size_t to = below(bytes.size());
        const size_t count = below(bytes.size() - std::max(from, to)) + 1;
        std::memmove(bytes.data() + to, bytes.data() + from, count);
      }
  }
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t runs = 5000;
  uint64_t seed = 1;
  std::vector<Bytes> corpus;
  std::vector<std::string> names;
  const auto add = [&](const std::filesystem::path& path) {
    corpus.push_back(read_file(path));
    names.push_back(path.filename());
  };
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with("--runs=")) {
      runs = std::strtoull(argv[i] + 7, nullptr, 10);
    } else if (argument.starts_with("--seed=")) {
      seed = std::strtoull(argv[i] + 7, nullptr, 10);
    } else if (std::filesystem::is_directory(argument)) {
      for (const auto& entry : std::filesystem::directory_iterator(argument)) {
        if (entry.is_regular_file()) add(entry.path());
      }
    } else if (std::filesystem::is_regular_file(argument)) {
      add(argument);
    }
  }
  for (const int signal : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL}) std::signal(signal, save_current_input);

  if (corpus.empty()) {
    std::fprintf(stderr, "no corpus: nothing gets past the first checks\n");
    return 1;
  }
  for (size_t i = 0; i < corpus.size(); ++i) {
    accepted = 0;
    run_one(corpus[i]);
    if ((accepted == 0) == names[i].starts_with("refused")) continue;
    std::fprintf(stderr, "%s is %s\n", names[i].c_str(),
                 accepted == 0 ? "refused" : "accepted, against its name");
    return 1;
  }
  const size_t files = corpus.size();
  std::mt19937_64 random(seed);
  for (uint64_t run = 0; run < runs; ++run) {
    Bytes input = corpus[random() % corpus.size()];
    for (uint64_t count = 1 + random() % 8; count > 0; --count) mutate(input, random);
    run_one(input);
  }
  std::printf("%zu files and %llu mutations of them (seed %llu) passed\n", files,
              static_cast<unsigned long long>(runs), static_cast<unsigned long long>(seed));
  return 0;
}
