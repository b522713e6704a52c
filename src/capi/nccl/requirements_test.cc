// Requests of programs of each version, as bytes at the offsets that their headers have.
#include "capi/nccl/requirements.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "capi/nccl/device_api.h"
#include "core/error.h"

namespace ropewalk::nccl {
namespace {

// Of nccl.h and nccl_device of the version: how long its structure is, and where its fields begin.
struct Header {
  unsigned version;
  std::size_t size;
  std::size_t first;  // of its first list: behind the head
  DevCommLayout layout;
};

const std::vector<Header> kHeaders = {
    {22809, 56, 0, DevCommLayout::k22807},   {22902, 72, 16, DevCommLayout::k22807},
    {22903, 72, 16, DevCommLayout::k22807},  {22907, 88, 16, DevCommLayout::k22907},
    {23007, 96, 16, DevCommLayout::k23000},  {23102, 120, 16, DevCommLayout::k23100},
    {23203, 120, 16, DevCommLayout::k23100},
};

// A structure as its initializer leaves it, behind which nothing may be read.
class RequestBytes {
 public:
  explicit RequestBytes(const Header& header) : first_(header.first), bytes_(header.size) {
    if (header.first == 0) return;
    set(0, std::uint64_t{header.size}, true);
    set(8, std::uint32_t{0xcafebeef}, true);
    set(12, header.version, true);
    set(44, std::int32_t{4});  // ginContextCount
    if (header.size > 84) set(68, std::int32_t{-2147483647 - 1});
  }
  // `offset` as 2.28 counts; with `head` as later versions do.
  template <typename T>
  RequestBytes& set(std::size_t offset, T value, bool head = false) {
    std::memcpy(bytes_.data() + offset + (head ? 0 : first_), &value, sizeof value);
    return *this;
  }
  template <typename T>
  RequestBytes& set(std::size_t offset, T* list) {
    return set(offset, reinterpret_cast<std::uint64_t>(list));
  }
  [[nodiscard]] const void* data() const { return bytes_.data(); }

 private:
  std::size_t first_;
  std::vector<std::byte> bytes_;
};

std::pair<Errc, std::string> refusal(const RequestBytes& request) {
  try {
    read_requirements(request.data());
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {Errc::kInternal, "served"};
}

void expect_refusal(const RequestBytes& request, Errc code, const std::string& words) {
  const auto [got, said] = refusal(request);
  EXPECT_EQ(got, code) << said;
  EXPECT_NE(said.find(words), std::string::npos) << words << " in " << said;
}

constexpr std::size_t kResources = 0;
constexpr std::size_t kTeams = 8;
constexpr std::size_t kMultimem = 16;
constexpr std::size_t kBarriers = 20;
constexpr std::size_t kLsaBarriers = 24;
constexpr std::size_t kRailBarriers = 28;
constexpr std::size_t kForceGin = 40;
constexpr std::size_t kSignals = 48;
constexpr std::size_t kCounters = 52;
constexpr std::size_t kConnection = 56;
constexpr std::size_t kWorldBarriers = 72;
constexpr std::size_t kRuntimeVersion = 88;
constexpr std::size_t kCftCaps = 92;
constexpr std::size_t kCftBarriers = 96;

TEST(Requirements, EachVersionIsReadByItsHeader) {
  for (const Header& header : kHeaders) {
    ncclDevResourceRequirements second{};
    second.bufferSize = 5000;
    ResourceHandle handle = 0;
    second.outBufferHandle = &handle;
    ncclDevResourceRequirements first{};
    first.next = &second;
    first.bufferSize = 77;
    first.bufferAlign = 256;
    ncclTeamRequirements team{};
    const DevCommRequest read = read_requirements(RequestBytes(header)
                                                      .set(kResources, &first)
                                                      .set(kTeams, &team)
                                                      .set(kLsaBarriers, 7)
                                                      .data());
    EXPECT_EQ(read.layout, header.layout) << header.version;
    EXPECT_EQ(read.version, header.first == 0 ? 22807 : header.version);
    EXPECT_EQ(read.lsa_barriers, 7) << header.version;
    ASSERT_EQ(read.resources.size(), 2U) << header.version;
    EXPECT_EQ(read.resources[0].bytes, 77U);
    EXPECT_EQ(read.resources[0].alignment, 256U);
    EXPECT_EQ(read.resources[0].handle, nullptr);
    EXPECT_EQ(read.resources[1].bytes, 5000U);
    EXPECT_EQ(read.resources[1].alignment, 1U);
    EXPECT_EQ(read.resources[1].handle, &handle);
  }
}

// PyTorch 2.11, compiled with 2.28, asks for barriers over GIN too, and means those of one host.
TEST(Requirements, CountsOfBarriersMeanWhatTheyMeantToTheirVersion) {
  for (const Header& header : kHeaders) {
    const auto all = [&] { return RequestBytes(header).set(kLsaBarriers, 3).set(kBarriers, 5); };
    const auto rail = [&] {
      return RequestBytes(header).set(kLsaBarriers, 3).set(kRailBarriers, 9);
    };
    if (header.layout == DevCommLayout::k22807) {
      EXPECT_EQ(read_requirements(all().data()).lsa_barriers, 5);
      EXPECT_EQ(read_requirements(rail().data()).lsa_barriers, 3);
    } else {
      expect_refusal(all(), Errc::kInvalidUsage,
                     "barrierCount is 5: there are no networks that GPUs");
      expect_refusal(rail(), Errc::kInvalidUsage, "railGinBarrierCount is 9");
    }
  }
}

TEST(Requirements, NetworksOfGpusAreRefusedByName) {
  for (const Header& header : kHeaders) {
    const RequestBytes plain(header);
    const auto with = [&](std::size_t field, int value) {
      return RequestBytes(plain).set(field, value);
    };
    const std::string served = "ginConnectionType none, with barriers of the LSA team alone";
    expect_refusal(RequestBytes(plain).set(kForceGin, true), Errc::kInvalidUsage,
                   "ginForceEnable is set");
    expect_refusal(with(kSignals, 1), Errc::kInvalidUsage, "ginSignalCount is 1");
    expect_refusal(with(kCounters, 2), Errc::kInvalidUsage, served);
    ncclDevResourceRequirements resource{};
    resource.ginCounterCount = 4;
    expect_refusal(RequestBytes(plain).set(kResources, &resource), Errc::kInvalidUsage,
                   "resourceRequirementsList: ginCounterCount is 4");
    if (header.version >= 22907) {
      expect_refusal(with(kConnection, 2), Errc::kInvalidUsage, "ginConnectionType is 2");
    }
    if (header.version >= 23000) {
      expect_refusal(with(kWorldBarriers, 1), Errc::kInvalidUsage, "worldGinBarrierCount is 1");
    }
    if (header.version >= 23100) {
      expect_refusal(with(kCftCaps, 1), Errc::kInvalidUsage, "cftCaps is 1");
      expect_refusal(with(kCftBarriers, 6), Errc::kInvalidUsage, "cftBarrierCount 6");
      expect_refusal(RequestBytes(plain).set(kRuntimeVersion, true), Errc::kInvalidUsage,
                     "useRuntimeVersion");
    }
  }
}

// With NVIDIA's code where GPUs have none.
TEST(Requirements, MulticastMemoryIsRefused) {
  for (const Header& header : kHeaders) {
    expect_refusal(RequestBytes(header).set(kMultimem, true), Errc::kInvalidArgument,
                   "lsaMultimem is set");
    ncclTeamRequirements team{};
    ncclTeamRequirements head{};
    head.next = &team;
    team.multimem = true;
    expect_refusal(RequestBytes(header).set(kTeams, &head), Errc::kInvalidArgument,
                   "teamRequirementsList[1]: multimem");
  }
}

TEST(Requirements, OtherVersionsAndNoVersionsAreRefusedByName) {
  const Header newest = kHeaders.back();
  const auto of_version = [&](unsigned version) {
    return RequestBytes(newest).set(12, version, true);
  };
  expect_refusal(of_version(23204), Errc::kInvalidUsage,
                 "compiled with NCCL 2.32.4, later than 2.32.3");
  expect_refusal(of_version(22904), Errc::kInvalidUsage, "compiled with NCCL 2.29.4, whose");
  expect_refusal(of_version(22809), Errc::kInvalidUsage, "compiled with NCCL 2.28.9, whose");
  // Not taken for one of 2.28: its size would be a list.
  expect_refusal(RequestBytes(newest).set(8, std::uint32_t{0xdeadbee0}, true), Errc::kInvalidUsage,
                 "not made by NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER");
  expect_refusal(RequestBytes(newest).set(0, std::uint64_t{71}, true), Errc::kInvalidArgument,
                 "a size of 71 bytes is too small");
  const Header first = kHeaders.front();
  expect_refusal(RequestBytes(first).set(kLsaBarriers, -1), Errc::kInvalidUsage, "not made by");
  expect_refusal(RequestBytes(first).set(kResources, std::uint64_t{0x7f0000001001}),
                 Errc::kInvalidUsage, "not made by");
  expect_refusal(RequestBytes(first).set(kForceGin, std::uint8_t{2}), Errc::kInvalidUsage,
                 "not made by");
}

TEST(Requirements, NumbersThatMakeNoSenseAreRefused) {
  const Header newest = kHeaders.back();
  expect_refusal(RequestBytes(newest).set(kLsaBarriers, -1), Errc::kInvalidArgument,
                 "lsaBarrierCount is -1");
  ncclDevResourceRequirements resource{};
  resource.bufferSize = std::size_t{1} << 40U;
  expect_refusal(RequestBytes(newest).set(kResources, &resource), Errc::kInvalidArgument,
                 "resourceRequirementsList[0]: 1099511627776 bytes");
  resource.bufferSize = ~std::size_t{0};
  resource.bufferAlign = ~std::size_t{0};
  expect_refusal(RequestBytes(newest).set(kResources, &resource), Errc::kInvalidArgument,
                 "resourceRequirementsList[0]");
  resource = {};
  resource.next = &resource;
  expect_refusal(RequestBytes(newest).set(kResources, &resource), Errc::kInvalidArgument,
                 "more than 65536 entries");
}

TEST(Requirements, EntriesOfListsAreMadeAsNvidiasAre) {
  ncclDevResourceRequirements entry;
  std::memset(&entry, 0xee, sizeof entry);
  LsaBarrierHandle barriers{99, 99};
  // (3 * 5 + 5 * 8) words.
  ASSERT_EQ(ncclLsaBarrierCreateRequirement({8, 2, 1}, 5, &barriers, &entry), ncclSuccess);
  EXPECT_EQ(entry.next, nullptr);
  EXPECT_EQ(entry.bufferSize, 220U);
  EXPECT_EQ(entry.bufferAlign, 4U);
  EXPECT_EQ(entry.outBufferHandle, &barriers.bufHandle);
  EXPECT_EQ(entry.ginSignalCount + entry.ginCounterCount, 0);
  EXPECT_EQ(entry.outGinSignalStart, nullptr);
  EXPECT_EQ(entry.outGinCounterStart, nullptr);
  EXPECT_EQ(barriers.nBarriers, 5);
  // Three elements of 20 bytes: three slots each.
  EXPECT_EQ(ncclLLA2ACalcSlots(3, 20), 9);
  EXPECT_EQ(ncclLLA2ACalcSlots(3, 16), 6);
  LLA2AHandle slots{99, 99};
  std::memset(&entry, 0xee, sizeof entry);
  ASSERT_EQ(ncclLLA2ACreateRequirement(4, 9, &slots, &entry), ncclSuccess);
  EXPECT_EQ(entry.bufferSize, 4U * 19 * 16);
  EXPECT_EQ(entry.bufferAlign, 16U);
  EXPECT_EQ(entry.outBufferHandle, &slots.bufHandle);
  EXPECT_EQ(slots.nSlots, 9U);
  EXPECT_EQ(ncclLsaBarrierCreateRequirement({8, 2, 1}, 5, nullptr, &entry), ncclInvalidArgument);
  EXPECT_EQ(ncclLsaBarrierCreateRequirement({8, 2, 1}, -5, &barriers, &entry), ncclInvalidArgument);
  EXPECT_EQ(ncclLLA2ACreateRequirement(4, 9, &slots, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclLLA2ACreateRequirement(-4, 9, &slots, &entry), ncclInvalidArgument);
}

}  // namespace
}  // namespace ropewalk::nccl
