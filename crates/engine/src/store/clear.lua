-- Deletes one count, as if nothing had been charged.
--
--   KEYS[1]  the key
--   reply    1 if there was a count, else 0
return redis.call('DEL', KEYS[1])
