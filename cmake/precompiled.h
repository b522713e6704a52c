// Headers that most sources include, compiled once for a whole build (RW_PRECOMPILED). Headers that
// cost more to load than they save are left out: GCC instantiates nlohmann's parser again in each
// source that loads it.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#ifdef __clang__
#include <nlohmann/json.hpp>
#include <random>
#endif
