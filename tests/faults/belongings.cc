#include "belongings.h"

#include <cctype>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

namespace towline::faults {

namespace {

namespace fs = std::filesystem;

// "socket:[4711]" becomes a kind, since numbers differ from one to the next; "anon_inode:[eventfd]" is one.
std::string kind_of(std::string target) {
  std::erase_if(target, [](unsigned char c) { return std::isdigit(c) != 0; });
  return target;
}

// Adds the inodes of this process's sockets.
void count_descriptors(Belongings& found, std::set<std::string>& sockets) {
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the iterator's own
    const fs::path target = fs::read_symlink(entry.path(), gone);
    const std::string text = target.string();
    if (gone || text.starts_with("/proc/")) continue;
    ++found["descriptor " + kind_of(text)];
    if (text.starts_with("socket:[")) sockets.insert(text.substr(8, text.size() - 9));
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

// This process's sockets in the abstract namespace: other programs of ours may run beside the test.
void count_names(Belongings& found, const std::set<std::string>& own_sockets) {
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    std::istringstream fields(line);
    std::string number, references, protocol, flags, type, state, inode, name;
    fields >> number >> references >> protocol >> flags >> type >> state >> inode >> name;
    if (name.starts_with("@towline") && own_sockets.contains(inode)) ++found["abstract socket " + name];
  }
}

}  // namespace

Belongings belongings() {
  Belongings found;
  std::set<std::string> sockets;
  count_descriptors(found, sockets);
  count_shared_mappings(found);
  count_tasks(found);
  count_names(found, sockets);
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
