#include "comm/collective_call.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <string>

#include "core/error.h"
#include "core/testing/in_child.h"

namespace ropewalk::comm {
namespace {

std::string refusal(std::size_t count, std::byte* memory) {
  CollectiveCall call;
  call.collective = Collective::kAllReduce;
  call.type = DataType::kFloat32;
  call.count = count;
  call.input = memory;
  call.output = memory;
  return testing::message_of([&] { (void)validate(call, 0, 1); }, Errc::kInvalidArgument);
}

// No buffer is so large, so nothing may begin to look for its end.
TEST(CollectiveCall, BuffersBeyondTheAddressSpaceAreRefused) {
  alignas(16) std::array<std::byte, 16> memory{};
  EXPECT_NE(refusal(std::size_t{1} << 46, memory.data()).find("leave the address space"),
            std::string::npos);
  EXPECT_NE(refusal(std::size_t{1} << 60, memory.data()).find("leave the address space"),
            std::string::npos);
  EXPECT_NE(refusal(std::size_t{1} << 62, memory.data()).find("exceed the address space"),
            std::string::npos);
}

}  // namespace
}  // namespace ropewalk::comm
