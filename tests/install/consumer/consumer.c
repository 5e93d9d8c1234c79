#include <stdio.h>
#include <towline/towline.h>

int main(void) {
  puts(towline_version());
  return 0;
}
