// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The bodies of episodic/core.hpp, for one source of a program whose others only declare. Define
/// EPISODIC_SEPARATE for all sources of the program (base/inline.hpp), and compile one like this:
///
///     #include "episodic/core_bodies.hpp"

#ifdef EPISODIC_COMPILED
#error "the compiled library (episodic::core) has these bodies; leave core_bodies.hpp out"
#endif
#ifndef EPISODIC_SEPARATE
#error "define EPISODIC_SEPARATE for every source of the program, or leave core_bodies.hpp out"
#endif

#include "episodic/attention/impl/attend.hpp"
#include "episodic/attention/impl/attend_few.hpp"
#include "episodic/attention/impl/attend_many.hpp"
#include "episodic/attention/impl/copy_rows.hpp"
#include "episodic/attention/impl/rotary.hpp"
#include "episodic/attention/impl/state.hpp"
#include "episodic/base/impl/config.hpp"
#include "episodic/base/impl/parallel.hpp"
#include "episodic/base/impl/presets.hpp"
#include "episodic/core.hpp"
#include "episodic/cpu/impl/kernels.hpp"
#include "episodic/cpu/impl/kernels_portable.hpp"
#include "episodic/group/impl/group.hpp"
#include "episodic/group/impl/thread_group.hpp"
#include "episodic/memory/impl/host_memory.hpp"
#include "episodic/memory/impl/layer_bank.hpp"
#include "episodic/memory/impl/layer_state.hpp"
#include "episodic/memory/impl/memory_core.hpp"
#include "episodic/memory/impl/memory_shape.hpp"
#include "episodic/memory/impl/pages.hpp"
#include "episodic/memory/impl/retention.hpp"
#include "episodic/memory/impl/sizes.hpp"
#include "episodic/recall/impl/buffers.hpp"
#include "episodic/recall/impl/exact_index.hpp"
#include "episodic/recall/impl/exact_search.hpp"
#include "episodic/recall/impl/group_best.hpp"
#include "episodic/recall/impl/huge_pieces.hpp"
#include "episodic/recall/impl/index_bytes.hpp"
#include "episodic/recall/impl/layered_index.hpp"
#include "episodic/recall/impl/no_faiss_index.hpp"
#include "episodic/recall/impl/projection.hpp"
#include "episodic/recall/impl/quantised.hpp"
#include "episodic/recall/impl/representatives.hpp"
#include "episodic/recall/impl/vector_slabs.hpp"
#include "episodic/store/impl/codec.hpp"
#include "episodic/store/impl/host_store.hpp"
#include "episodic/store/impl/layered_store.hpp"
#include "episodic/timeline/impl/refine.hpp"
#include "episodic/timeline/impl/segmenter.hpp"
#include "episodic/timeline/impl/surprise_threshold.hpp"
#include "episodic/timeline/impl/timeline.hpp"
#include "episodic/timeline/impl/token_surprise.hpp"
