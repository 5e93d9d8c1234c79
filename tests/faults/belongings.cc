#include "belongings.h"

#include <filesystem>
#include <fstream>
#include <sstream>

namespace towline::faults {

namespace {

namespace fs = std::filesystem;

// "socket:[4711]" and "/memfd:kv (deleted)" become kinds: numbers differ from one to the next.
std::string kind_of(const std::string& target) { return target.substr(0, target.find('[')); }

void count_descriptors(Belongings& found) {
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the iterator's own
    const fs::path target = fs::read_symlink(entry.path(), gone);
    if (!gone && target.string().find("/proc/") != 0) ++found["descriptor " + kind_of(target)];
  }
}

void count_shared_mappings(Belongings& found) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream fields(line);
    std::string addresses, rights, offset, device, inode, file;
    fields >> addresses >> rights >> offset >> device >> inode >> file;
    if (rights.size() == 4 && rights[3] == 's') ++found["shared mapping of " + kind_of(file)];
  }
}

void count_tasks(Belongings& found) {
  for (const auto& task : fs::directory_iterator("/proc/self/task")) {
    ++found["thread"];
    std::ifstream children(task.path() / "children");
    for (std::string child; children >> child;) ++found["child"];
  }
}

// By inode: the names are random.
void count_files(Belongings& found) {
  for (const char* directory : {"/dev/shm", "/tmp"}) {
    for (const auto& entry : fs::directory_iterator(directory)) {
      const std::string name = entry.path().filename();
      if (name.find("towline") == 0) ++found["file " + entry.path().string()];
    }
  }
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    const size_t name = line.find(" @towline");
    if (name != std::string::npos) ++found["abstract socket " + line.substr(name + 1)];
  }
}

}  // namespace

Belongings belongings() {
  Belongings found;
  count_descriptors(found);
  count_shared_mappings(found);
  count_tasks(found);
  count_files(found);
  return found;
}

std::string added(const Belongings& before, const Belongings& after) {
  std::string text;
  for (const auto& [what, count] : after) {
    const auto was = before.find(what);
    const int more = count - (was == before.end() ? 0 : was->second);
    if (more > 0) text += std::to_string(more) + " x " + what + "; ";
  }
  return text.empty() ? "nothing" : text;
}

}  // namespace towline::faults
