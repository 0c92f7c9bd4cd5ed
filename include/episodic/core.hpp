// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The header-only core: what an episodic memory is made of, with nothing to link and nothing but a
/// C++20 compiler (CMake: `episodic::headers`; by hand: -I include).
///
///   group       ranks that add up what each of them has
///   timeline    surprise, thresholds, segmenters, refinement, the table of events
///   attention   rotary embedding, one softmax over segments
///   recall      representatives, the exact index, similarity and contiguity buffers, reweighting
///   store       blocks of events, the store in host memory
///   retention   association and forgetting
///   memory      HostMemory, which puts them together: one sequence's memory, driven step by step
///
/// These are the compiled library's own sources, so that both decide alike; what the library has
/// beside them is compiled alone (`episodic::core`): loops for instruction sets, FAISS, files and
/// the disk tier, `EpisodicMemory` (a HostMemory with folder, disk tier and base), models,
/// tokenizers, and settings as JSON. Headers not named here may be included, but what they declare
/// must then be linked.
///
/// In a program of many sources, define EPISODIC_SEPARATE and compile episodic/core_bodies.hpp once
/// (base/inline.hpp): each source then takes a second instead of ten.
///
/// Loops run on OpenMP where the program is compiled with it, on an Executor where it gives one,
/// and else on the calling thread (base/parallel.hpp).

#include "episodic/attention/attend.hpp"
#include "episodic/attention/rotary.hpp"
#include "episodic/attention/state.hpp"
#include "episodic/base/callbacks.hpp"
#include "episodic/base/config.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/base/presets.hpp"
#include "episodic/group/group.hpp"
#include "episodic/group/thread_group.hpp"
#include "episodic/memory/host_memory.hpp"
#include "episodic/recall/buffers.hpp"
#include "episodic/recall/group_best.hpp"
#include "episodic/recall/index.hpp"
#include "episodic/recall/recall_hook.hpp"
#include "episodic/recall/representatives.hpp"
#include "episodic/recall/reweight.hpp"
#include "episodic/retention/memoria.hpp"
#include "episodic/store/codec.hpp"
#include "episodic/store/event_store.hpp"
#include "episodic/timeline/event_table.hpp"
#include "episodic/timeline/key_segmenter.hpp"
#include "episodic/timeline/refine.hpp"
#include "episodic/timeline/segmenter.hpp"
#include "episodic/timeline/surprise.hpp"
#include "episodic/timeline/timeline.hpp"
