// Where NIXL's installation has this header.
#pragma once

#include <serdes/serdes.h>
