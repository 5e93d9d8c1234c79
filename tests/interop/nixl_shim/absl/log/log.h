// NIXL's plugin POSIX includes this and uses nothing of it.
#pragma once
