// NIXL's installation has this header here.
#pragma once

#include <serdes/serdes.h>
