// Plugins include the header by this path.
#pragma once

#include "../utils/common/nixl_log.h"
