// Compares compiled schedules with the text files in tests/golden/schedules, so that a change of an
// algorithm shows as a readable difference. RW_UPDATE_GOLDEN=1 writes them anew.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <source_dir.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "schedule/check.h"
#include "schedule/compile.h"
#include "schedule/testing/hosts.h"
#include "schedule/text.h"

namespace ropewalk::schedule {
namespace {

namespace fs = std::filesystem;

fs::path folder() { return fs::path(RW_SOURCE_DIR) / "tests/golden/schedules"; }

/// The representative set: file name to text.
std::map<std::string, std::string> compiled() {
  std::map<std::string, std::string> texts;
  for (const Algorithm& algorithm : algorithms()) {
    for (int c = 0; c < kNumCollectives; ++c) {
      // Hosts: two, with ranks one after the other; and three, dealt out.
      if (!algorithm.needs.empty()) {
        for (const bool in_turn : {false, true}) {
          Request request{static_cast<Collective>(c), in_turn ? 6 : 4, 0, 1};
          request.host_of_rank = testing::equal_hosts(in_turn ? 3 : 2, 2, in_turn);
          if (has_root(request.collective)) request.root = 1;
          if (!algorithm.supports(request)) continue;
          texts[fmt::format("{}-{}-{}.txt", name(request.collective), algorithm.name,
                            request.num_ranks)] = print(compile(algorithm.name, request));
        }
      }
      for (const int ranks : {2, 3, 4}) {
        Request request{static_cast<Collective>(c), ranks, 0, 1};
        // A root in the middle, so that it is seen to be used; two ranks for the main job only.
        if (has_root(request.collective)) request.root = 1;
        if (ranks == 2 && request.collective != Collective::kAllReduce) continue;
        if (!algorithm.supports(request)) continue;
        texts[fmt::format("{}-{}-{}.txt", name(request.collective), algorithm.name, ranks)] =
            print(compile(algorithm.name, request));
      }
    }
  }
  return texts;
}

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Golden, SchedulesAreAsKept) {
  const char* const update = std::getenv("RW_UPDATE_GOLDEN");
  const bool write = update != nullptr && std::string(update) == "1";
  const auto texts = compiled();
  EXPECT_GT(texts.size(), 60U);
  if (write) {
    fs::create_directories(folder());
    for (const auto& [file, text] : texts) std::ofstream(folder() / file) << text;
  }
  for (const auto& [file, text] : texts) {
    EXPECT_EQ(read(folder() / file), text) << file << "; RW_UPDATE_GOLDEN=1 writes it anew";
  }
  for (const auto& entry : fs::directory_iterator(folder())) {
    if (entry.path().extension() != ".txt") continue;
    const std::string file = entry.path().filename();
    EXPECT_TRUE(texts.contains(file)) << file << " is not made any more: delete it";
    const std::string kept = read(entry.path());
    EXPECT_EQ(print(parse(kept)), kept) << file;
    EXPECT_TRUE(check(parse(kept)).accepted) << file;
  }
}

}  // namespace
}  // namespace ropewalk::schedule
