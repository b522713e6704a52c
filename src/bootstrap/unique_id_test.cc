#include "bootstrap/unique_id.h"

#include <gtest/gtest.h>

#include <random>

#include "bootstrap/test_support.h"

namespace ropewalk::bootstrap {
namespace {

std::string refusal(std::span<const std::byte> bytes) {
  const auto [code, text] = error_of([&] { (void)decode_unique_id(bytes); });
  EXPECT_EQ(code, Errc::kInvalidArgument);
  EXPECT_TRUE(text.starts_with("not a Ropewalk unique id: ")) << text;
  return text;
}

TEST(UniqueId, ReadsBackWhatWasWritten) {
  for (const char* host : {"10.1.2.3:4711", "[2001:db8::7]:80"}) {
    UniqueIdParts parts;
    parts.address = resolve(host).front();
    parts.secret.fill(9);
    parts.service.fill(3);
    const UniqueIdParts read = decode_unique_id(encode_unique_id(parts));
    EXPECT_EQ(read.address.text(), host);
    EXPECT_EQ(read.secret, parts.secret);
    EXPECT_EQ(read.service, parts.service);
  }
}

TEST(UniqueId, NoTwoAreEqual) {
  Context context;
  EXPECT_NE(make_unique_id(quiet_config(), context), make_unique_id(quiet_config(), context));
}

TEST(UniqueId, DamageIsRecognised) {
  Context context;
  const UniqueId id = make_unique_id(quiet_config(), context);
  for (std::size_t offset = 0; offset < id.size(); ++offset) {
    UniqueId damaged = id;
    damaged[offset] ^= std::byte{4};
    refusal(damaged);
  }
  for (std::size_t length = 0; length < id.size(); ++length) {
    EXPECT_NE(refusal(std::span(id).first(length)).find("bytes"), std::string::npos);
  }
  EXPECT_NE(refusal(UniqueId{}).find("zero"), std::string::npos);
  std::mt19937 random(7);
  for (int round = 0; round < 100; ++round) {
    UniqueId noise{};
    for (std::byte& byte : noise) byte = static_cast<std::byte>(random());
    refusal(noise);
  }
}

TEST(UniqueId, NoInterfaceIsAnErrorThatListsThem) {
  Config config = quiet_config();
  config.set("SOCKET_IFNAME", "=nothing0", "test");
  Context context;
  const auto [code, text] = error_of([&] { (void)make_unique_id(config, context); });
  EXPECT_EQ(code, Errc::kInvalidArgument);
  EXPECT_NE(text.find("ROPEWALK_SOCKET_IFNAME \"=nothing0\""), std::string::npos) << text;
  EXPECT_NE(text.find(" lo"), std::string::npos) << text;
}

}  // namespace
}  // namespace ropewalk::bootstrap
