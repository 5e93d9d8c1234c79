#include <cstdio>

#include <towline/towline.hpp>

int main() {
  std::puts(towline_version());
  return 0;
}
