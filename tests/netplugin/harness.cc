#include "netplugin/harness.h"

#include <dirent.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "core/testing/pattern.h"
#include "core/testing/sanitizers.h"
#if defined(__clang__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace ropewalk::netplugin::testing {

void check(int result, const char* call) {
  if (result == 0) return;
  std::string what = std::string(call) + " returned " + std::to_string(result);
  for (const std::string& line : take_lines()) what += "\n  " + line;
  throw std::runtime_error(what);
}

Bytes numbered(std::size_t bytes, std::uint64_t seed) {
  Bytes data(bytes);
  ropewalk::testing::fill_pattern(data.data(), bytes, seed);
  return data;
}

void exchange(Loop& loop, std::size_t bytes, std::size_t room, std::uint64_t seed) {
  NetApi& api = *loop.net.api;
  Bytes out = numbered(bytes + 2, seed);
  Bytes in(room + 2, 0xee);
  void* out_memory = loop.net.register_memory(loop.sender, out.data(), out.size());
  void* in_memory = loop.net.register_memory(loop.receiver, in.data(), in.size());
  Transfer receive;
  Transfer send;
  poll_until(
      [&] {
        if (receive.request == nullptr) {
          check(api.irecv(loop.receiver, {{in.data() + 1, room, 5, in_memory}}, &receive.request),
                "irecv");
        }
        if (send.request == nullptr) {
          check(api.isend(loop.sender, {out.data() + 1, bytes, 5, out_memory}, &send.request),
                "isend");
        }
        const bool received = receive.test(api);
        return send.test(api) && received;
      },
      "a message");
  EXPECT_EQ(receive.sizes[0], static_cast<int>(bytes));
  EXPECT_EQ(receive.sizes[1], 0);
  if (bytes > 0) {
    EXPECT_EQ(std::memcmp(in.data() + 1, out.data() + 1, bytes), 0) << bytes << " bytes";
  }
  EXPECT_EQ(in[0], 0xee);
  EXPECT_TRUE(std::all_of(in.begin() + 1 + static_cast<std::ptrdiff_t>(bytes), in.end(),
                          [](std::uint8_t byte) { return byte == 0xee; }));
  void* flush = nullptr;
  check(api.iflush(loop.receiver, {in.data() + 1, bytes, 0, in_memory}, &flush), "iflush");
  if (flush != nullptr) {
    int done = 0;
    poll_until(
        [&] {
          check(api.test(flush, &done, nullptr), "test of a flush");
          return done == 1;
        },
        "a flush");
  }
  check(api.deregister(loop.sender, out_memory), "deregMr");
  check(api.deregister(loop.receiver, in_memory), "deregMr");
}

std::ostream& operator<<(std::ostream& out, const Setup& setup) {
  return out << "v" << setup.version << " " << setup.net;
}

std::string case_name(const ::testing::TestParamInfo<Setup>& tested) {
  std::string name = "v";
  name += std::to_string(tested.param.version);
  return name + "_" + tested.param.net;
}

namespace {

// The thread sanitizer starts a symbolizer with pipes at its first suppressed report about the
// software bridges (dev/tsan.supp). This starts it before descriptors are counted.
void start_symbolizer() {
#if defined(__clang__)
  if constexpr (ropewalk::testing::kThreadSanitizer) {
    std::array<char, 64> name{};
    __sanitizer_symbolize_pc(reinterpret_cast<void*>(&start_symbolizer), "%f", name.data(),
                             name.size());
  }
#endif
}

}  // namespace

std::size_t count_entries(const char* folder) {
  start_symbolizer();
  std::size_t count = 0;
  DIR* open = opendir(folder);
  while (readdir(open) != nullptr) ++count;
  closedir(open);
  return count;
}

}  // namespace ropewalk::netplugin::testing
