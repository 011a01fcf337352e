"""The text of one query: a batch over nine orders runs it, and so does a stream of orders."""

ORDER_TOTALS = """
SELECT user_name, window.start AS window_start, window.end AS window_end,
       sum(money) AS total_money, max(money) AS max_money, min(money) AS min_money, count(1) AS total_count
FROM {records}
GROUP BY window(ordered_at, :size), user_name
"""
