// SPDX-License-Identifier: Apache-2.0
#include "run/retriever.hpp"

#include <utility>

namespace episodic::suites {

Retriever::Retriever(const SentenceEncoder& encoder, Cutter cutter)
    : encoder_(encoder), cutter_(std::move(cutter)) {}

Retriever::Found Retriever::find(const std::string& context, const std::string& question) {
  if (!any_ || context != context_) {
    any_ = false;  // until all of it is there
    cut_ = cutter_(context);
    std::vector<std::string> texts;
    for (const Chunk& c : cut_.chunks) texts.push_back(cut_.text.substr(c.begin, c.end - c.begin));
    vectors_ = encoder_.encode_all(texts);
    context_ = context;
    any_ = true;
  }
  Found found;
  found.chunks = static_cast<std::int64_t>(cut_.chunks.size());
  found.chosen = nearest(vectors_, encoder_.encode(question), kRetrieved);
  found.context = joined(cut_.text, cut_.chunks, found.chosen);
  return found;
}

}  // namespace episodic::suites
