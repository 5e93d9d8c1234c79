// A folder that is laid out like /sys, with the devices that a test gives it.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "support/temporary_folder.h"

namespace towline::support {

class FakeSysfs {
 public:
  FakeSysfs() {
    for (const char* folder : {"sys/class/infiniband", "sys/class/net", "sys/bus/pci/devices"})
      std::filesystem::create_directories(root_ / folder);
  }

  // The prefix of /sys.
  [[nodiscard]] const std::filesystem::path& root() const { return root_; }

  static void write(const std::filesystem::path& file, const std::string& text) {
    std::filesystem::create_directories(file.parent_path());
    std::ofstream{file} << text << "\n";
  }

  // `path` is what is below /sys/devices.
  std::filesystem::path add_pci(const std::string& path, int node, const std::string& vendor,
                                const std::string& sort) {
    std::filesystem::path device = root_ / "sys/devices" / path;
    write(device / "numa_node", std::to_string(node));
    write(device / "vendor", vendor);
    write(device / "class", sort);
    std::filesystem::create_symlink(device, root_ / "sys/bus/pci/devices" / device.filename());
    return device;
  }
  void add_gpu(const std::string& path, int node) { add_pci(path, node, "0x10de", "0x030200"); }
  // Its interface is up, or down.
  void add_network(const std::string& name, const std::string& path, int node, bool up = true) {
    const std::filesystem::path device = add_pci(path, node, "0x1ae0", "0x020000");
    const std::filesystem::path interface = device / "net" / name;
    write(interface / "operstate", up ? "up" : "down");
    std::filesystem::create_symlink(device, interface / "device");
    std::filesystem::create_symlink(interface, root_ / "sys/class/net" / name);
  }
  // One without a device.
  void add_virtual_network(const std::string& name) {
    const std::filesystem::path interface = root_ / "sys/devices/virtual/net" / name;
    write(interface / "operstate", "up");
    std::filesystem::create_symlink(interface, root_ / "sys/class/net" / name);
  }

 private:
  const TemporaryFolder folder_;
  const std::filesystem::path root_ = folder_.path();
};

}  // namespace towline::support
