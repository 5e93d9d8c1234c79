#include <cstdio>

#include <towline/collectives.hpp>
#include <towline/directory.hpp>
#include <towline/storage.hpp>
#include <towline/towline.hpp>

int main() {
  std::puts(towline_version());
  return 0;
}
