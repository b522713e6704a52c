#include "plan/nccl_graph.h"

#include <gtest/gtest.h>

#include <string>

#include "core/error.h"

namespace ropewalk::plan {
namespace {

const char kDump[] = R"(<graphs version="1">
  <graph id="0" pattern="4" crossnic="2" nchannels="2" speedintra="6" speedinter="6.25" latencyinter="3" typeintra="SYS" typeinter="PIX" samechannels="0">
    <channel>
      <net dev="0x0"/>
      <gpu dev="0x0" rank="4"/>
      <gpu dev="0x1" rank="5"/>
      <net dev="0x2"/>
    </channel>
    <channel>
      <net dev="0x2"/>
      <gpu dev="0x100000000000001" rank="5"/>
      <gpu dev="0xa" rank="4"/>
      <net dev="0x0"/>
    </channel>
  </graph>
  <graph id="1" pattern="1" crossnic="0" nchannels="0" speedintra="0" speedinter="0" typeintra="LOC" typeinter="LOC" samechannels="1">
  </graph>
</graphs>
)";

std::string edited(const std::string& from, const std::string& to) {
  std::string text = kDump;
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string message_of(const std::string& text) {
  try {
    read_nccl_graph(text, "g.xml");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kInvalidArgument);
    return error.what();
  }
  return "nothing was thrown";
}

TEST(NcclGraphFile, ADumpComesBackAsItWas) {
  const NcclGraphs graphs = read_nccl_graph(kDump, "g.xml");
  ASSERT_EQ(graphs.size(), 2U);
  EXPECT_EQ(graphs[0].channels[1].gpus[1].dev, 10U);
  EXPECT_EQ(graphs[0].channels[1].gpus[0].dev, (std::uint64_t{1} << 56) + 1);
  EXPECT_EQ(graphs[0].channels[0].gpus[0].rank, 4);
  EXPECT_EQ(graphs[0].speedinter, 6.25);
  EXPECT_EQ(write_nccl_graph(graphs), kDump);
}

TEST(NcclGraphFile, NumbersWithoutPrefixAreHexadecimalToo) {
  const auto graphs = read_nccl_graph(edited("dev=\"0xa\"", "dev=\"10\""), "g.xml");
  EXPECT_EQ(graphs[0].channels[1].gpus[1].dev, 16U);
  EXPECT_NE(write_nccl_graph(graphs).find("<gpu dev=\"0x10\""), std::string::npos);
}

TEST(NcclGraphFile, WhatNcclMisreadsIsNamedWithItsLine) {
  const std::pair<std::string, std::string> cases[] = {
      {edited(" typeinter=\"PIX\"", ""), "line 2"},
      {edited("typeintra=\"SYS\"", "typeintra=\"FAR\""), "typeintra names no path type"},
      {edited("nchannels=\"2\"", "nchannels=\"3\""), "nchannels is 3, and there are 2"},
      {edited("nchannels=\"2\"", "nchannels=\"-2\""), "nchannels"},
      {edited("      <net dev=\"0x2\"/>\n    </channel>", "    </channel>"), "one net alone"},
      {edited("<net dev=\"0x0\"/>", "<net dev=\"0x0\"/>\n<net dev=\"0x1\"/>"),
       "more than two nets"},
      {edited("<gpu dev=\"0x1\" rank=\"5\"/>", "<gpu dev=\"0x0\"/>"),
       "line 6: the GPU stands twice"},
      {edited("<gpu dev=\"0x1\"", "<gpu dev=\"one\""), "no hexadecimal"},
      {edited("<gpu dev=\"0x1\"", "<gpu dev=\"0x\""), "no hexadecimal"},
      {edited("<gpu dev=\"0x1\"", "<gpu dev=\"0x1ffffffffffffffffff\""), "no hexadecimal"},
      {edited("<gpu dev=\"0x1\" rank=\"5\"/>", "<gpu/>"), "line 6"},
      {edited("speedintra=\"6\"", "speedintra=\"nan\""), "speedintra"},
      {edited("speedintra=\"6\"", "speedintra=\"-6\""), "speedintra"},
      {edited("version=\"1\"", "version=\"2\""), "version is not 1"},
      {edited("pattern=\"4\"", "pattern=\"9\""), "pattern"},
      {"<system version=\"1\"/>", "<system> where <graphs>"},
      {"<?xml version=\"1.0\"?>\n" + std::string(kDump), "line 1"},
      {"", "g.xml"},
      {"<graphs version=\"1\">", "g.xml"},
  };
  for (const auto& [text, said] : cases) {
    const std::string message = message_of(text);
    EXPECT_EQ(message.find("g.xml"), 0U) << message;
    EXPECT_NE(message.find(said), std::string::npos) << message;
  }
}

TEST(NcclGraphFile, RefusesToWriteWhatItWouldRefuseToRead) {
  NcclGraphs graphs = read_nccl_graph(kDump, "g.xml");
  graphs[0].typeintra = "a\"b";
  EXPECT_THROW(write_nccl_graph(graphs), Error);
  graphs = read_nccl_graph(kDump, "g.xml");
  graphs[0].channels[0].nets.pop_back();
  EXPECT_THROW(write_nccl_graph(graphs), Error);
  graphs = read_nccl_graph(kDump, "g.xml");
  graphs[0].channels.resize(400, graphs[0].channels[0]);
  EXPECT_THROW(write_nccl_graph(graphs), Error);
}

}  // namespace
}  // namespace ropewalk::plan
