// The backward pass: scores and weights are computed anew from the log-sum-exp (Dao 2023,
// arXiv:2307.08691, algorithm 2, with queries in the lanes).
//
// The keys of a group are cut into panels. A panel is one thread's work: it goes over all tasks
// that see any of its keys, and owns the gradients of its keys and values. The gradient of a task's
// queries is a sum over panels, and it must not depend on which thread is the faster: a panel adds
// its share only when the one before it has. All of them take the tasks in one order, and the one
// before was started before: so nobody waits long, and nobody for ever.
#pragma once

#include <stdlib.h>

#include "backward_panel.h"
#include "norms.h"

namespace regard::REGARD_SET {

// The keys that a task sees.
struct Hull {
  int32_t first, last;
  bool empty() const { return first >= last; }
};

// What all threads share.
struct Backward {
  const regard_problem &p;
  const regard_gradients &g;
  Scoring scoring;
  int64_t groups, panels, tasks;  // groups of the whole batch; panels and tasks of each
  Hull *hulls = nullptr;          // (groups, tasks), or none where there is but one panel
  int64_t *passed = nullptr;      // (groups, panels): tasks that are done with
  // (groups, panels, heads of a group): shares of their gradients
  double *alibi = nullptr, *sink = nullptr;
  const RowNorm *norms = nullptr;  // (B, H, L), of rows whose log-sum-exp is coarse, or none
  regard_tensor query_sums = {};   // float32: the gradient itself, or memory lent for it
};

struct Lent {
  void *data;
  explicit Lent(int64_t bytes) : data(calloc(size_t(bytes) + 1, 1)) {}
  Lent(const Lent &) = delete;
  ~Lent() { free(data); }
};

// What a task adds to the gradients of its heads' slopes and sinks.
static void add_numbers(const Backward &w, const Task &task, const TaskRows &rows, bool first,
                        const floats *alibi, int64_t panel_number) {
  const int64_t heads = group_size(w.p);
  const auto add = [&](int j, floats part, double *sums) {
    alignas(64) float parts[LANES];
    store(parts, part);
    for (int i = 0; i < LANES && j * LANES + i < task.count; i++)
      sums[panel_number * heads + task.head[j * LANES + i] % heads] += parts[i];
  };
  for (int j = 0; j < task.vectors; j++) {
    if (w.g.alibi) add(j, alibi[j], w.alibi);
    if (!w.g.sink || !first) continue;
    const floats sink = numbers_of(w.p.sink, task, j * LANES);
    floats power;
    for (int i = 0; i < LANES; i++)
      power[i] = float((sink[i] - rows.peak[j][i] * w.scoring.unit) * LOG2_E - rows.log[j][i]);
    add(j, -exp2(power) * rows.delta[j], w.sink);
  }
}

template <class Arithmetic>
static void visit(const Backward &w, const KeyPanel<Arithmetic> &panel, int64_t panel_number,
                  int64_t number, const Task &task, const PanelScratch &scratch) {
  const regard_problem &p = w.p;
  const regard_gradients &g = w.g;
  TaskRows rows = {.query = scratch.query,
                   .gradient = scratch.gradient,
                   .query_rows = scratch.query_rows,
                   .gradient_rows = scratch.gradient_rows};
  load_task_rows<Arithmetic>(p, g, w.scoring, w.norms, task, rows);
  floats alibi[VECTORS] = {};
  backward_task(p, g, w.scoring, panel, task, rows, scratch, alibi);

  const Hull hull = {task.first_key, task.last_key};
  const QuerySums to = {.sums = w.query_sums,
                        .first = hull.empty() || hull.first >= panel.first,
                        .last = hull.empty() || hull.last <= panel.last};
  add_numbers(w, task, rows, to.first, alibi, panel_number);
  if (!g.query.data) return;
  if (!to.first) wait_above(&w.passed[panel_number - 1], number);
  add_query_gradient(typename Arithmetic::Element(), scratch.query_share, task, p.dim,
                     float(p.scale), to, g.query);
}

template <class Arithmetic>
static KeyPanel<Arithmetic> open_panel(const regard_problem &p, int64_t group, int64_t index,
                                       const PanelScratch &scratch) {
  const int64_t first = index * panel_keys(p), last = least(p.keys, first + panel_keys(p));
  KeyPanel<Arithmetic> opened = {.batch = group / p.groups,
                                 .group = group % p.groups,
                                 .first = int32_t(first),
                                 .last = int32_t(last)};
  Task of_group;
  of_group.batch = opened.batch, of_group.group = opened.group;
  const int64_t count = last - first;
  opened.keys = Arithmetic::keys(p.key, of_group, first, count, p.dim, scratch.key);
  opened.values = Arithmetic::keys(p.value, of_group, first, count, p.dim_value, scratch.value);
  opened.summed_keys = Arithmetic::STEP == 1 ? opened.keys
                                             : Arithmetic::values(p.key, of_group, first, count,
                                                                  p.dim, scratch.key_pairs);
  memset(scratch.key_gradient, 0, size_t(count * padded(p.dim)) * sizeof(float));
  memset(scratch.value_gradient, 0, size_t(count * padded(p.dim_value)) * sizeof(float));
  return opened;
}

template <class Arithmetic>
static void backward_panel(const Backward &w, int64_t group, int64_t index, void *memory) {
  const PanelScratch scratch(w.p, memory);
  const KeyPanel<Arithmetic> panel = open_panel<Arithmetic>(w.p, group, index, scratch);
  const int64_t panel_number = group * w.panels + index;
  const auto sees = [&](const Hull &hull) {
    return hull.empty() ? index == 0 : hull.first < panel.last && hull.last > panel.first;
  };
  for (int64_t number = 0; number < w.tasks; number++) {
    const bool seen = !w.hulls || sees(w.hulls[group * w.tasks + number]);
    if (seen || w.g.bias.data) {
      Task task;
      begin(w.p, group * w.tasks + number, task);
      if (w.g.bias.data) clear_bias_gradient(w.g.bias, task, panel.first, panel.last);
      if (seen) visit(w, panel, panel_number, number, task, scratch);
    }
    __atomic_store_n(&w.passed[panel_number], number + 1, __ATOMIC_RELEASE);
  }
  if (w.g.key.data) store_panel(scratch.key_gradient, panel, w.p.dim, float(w.p.scale), w.g.key);
  if (w.g.value.data)
    store_panel(scratch.value_gradient, panel, w.p.dim_value, spared_by_dropout(w.p), w.g.value);
}

static int find_hulls(const Backward &w) {
  return for_each_task(int(w.p.threads), w.groups * w.tasks, 1, [&](int64_t number, void *) {
    Task task;
    begin(w.p, number, task);
    w.hulls[number] = {task.first_key, task.last_key};
  });
}

// Adds up the shares of panels, in one order.
static void sum_numbers(const Backward &w, const double *shares, float *to) {
  const int64_t heads = group_size(w.p);
  for (int64_t head = 0; head < w.groups * heads; head++) {
    double total = 0;
    for (int64_t panel = 0; panel < w.panels; panel++)
      total += shares[(head / heads * w.panels + panel) * heads + head % heads];
    to[head] = float(total);
  }
}

template <class Arithmetic>
static int backward(const regard_problem &p, const regard_gradients &g) {
  using Element = typename Arithmetic::Element;
  if (p.batch == 0 || p.heads == 0) return REGARD_DONE;
  Backward w = {.p = p,
                .g = g,
                .scoring = scoring_of(p),
                .groups = p.batch * p.groups,
                .panels = most(int64_t(1), (p.keys + panel_keys(p) - 1) / panel_keys(p)),
                .tasks = tasks_per_group(p)};

  const bool many = w.panels > 1;
  const int64_t numbers = w.panels * p.batch * p.heads;
  const int64_t of_head = p.queries * p.dim;
  const bool lends = many && !std::is_same_v<Element, Float32> && g.query.data;
  const Lent hulls(many ? w.groups * w.tasks * int64_t(sizeof(Hull)) : 0);
  const Lent passed(w.groups * w.panels * int64_t(sizeof(int64_t)));
  const Lent shares(2 * numbers * int64_t(sizeof(double)));
  const Lent query_sums(lends ? p.batch * p.heads * of_head * int64_t(sizeof(float)) : 0);
  if (!hulls.data || !passed.data || !shares.data || !query_sums.data) return REGARD_OUT_OF_MEMORY;
  w.hulls = many ? (Hull *)hulls.data : nullptr;
  w.passed = (int64_t *)passed.data;
  w.alibi = (double *)shares.data;
  w.sink = w.alibi + numbers;
  w.query_sums =
      lends ? regard_tensor{query_sums.data, p.heads * of_head, of_head, p.dim} : g.query;

  const bool coarse = any_coarse(g.logsumexp, p.batch * p.heads * p.queries);
  const Lent norms(coarse ? p.batch * p.heads * p.queries * int64_t(sizeof(RowNorm)) : 0);
  if (!norms.data) return REGARD_OUT_OF_MEMORY;
  w.norms = (RowNorm *)norms.data;

  int result = many ? find_hulls(w) : REGARD_DONE;
  if (result == REGARD_DONE && coarse)
    result = find_coarse_norms<Arithmetic>(p, w.scoring, g.logsumexp, (RowNorm *)norms.data);
  if (result == REGARD_DONE)
    result =
        for_each_task(int(p.threads), w.groups * w.panels, PanelScratch::size(p),
                      [&](int64_t number, void *memory) {
                        backward_panel<Arithmetic>(w, number % w.groups, number / w.groups, memory);
                      });
  if (g.alibi) sum_numbers(w, w.alibi, g.alibi);
  if (g.sink) sum_numbers(w, w.sink, g.sink);
  return result;
}

}  // namespace regard::REGARD_SET
