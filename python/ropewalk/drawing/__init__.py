"""Pictures as SVG: shapes (`shapes`), where a machine's parts lie (`layout`), machines (`machine`).

What is drawn over a machine (trees of a plan, say) uses the same layout, so that both fit.
"""
