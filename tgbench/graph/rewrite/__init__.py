"""Every way to write a graph that computes the same: an e-graph, rules, and what is chosen of it.

    graph ─→ egraph     nodes of equal value in one class
          ─→ rules      what may be written in another way
          ─→ saturate   rules applied until nothing is new, or a limit is met
          ─→ clusters   where there is a choice, and what it can be; equal layers choose as one
          ─→ rewriting  the graph of some choices

Nothing here knows what anything takes: `plans.paths` does.
"""
