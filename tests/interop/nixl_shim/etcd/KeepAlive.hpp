// See SyncClient.hpp.
#pragma once
#include "etcd/SyncClient.hpp"
