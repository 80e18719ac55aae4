-- Deletes one count, as if nothing had been charged.
--
--   KEYS[1]  the key
--   reply    1 if there was a count, else 0. If the count has moved away from this name (move.lua), the
--            name where it is; the mark stays, and begins nothing there any more
local value = redis.pcall('GET', KEYS[1])
local mark, name = nil, nil
if type(value) == 'string' then
  mark, name = value:match('^(moved (%x+) 0 %d+ )%d+ ')
  if not name then mark, name = value:match('^(moved (%x+) )%d+ ') end
end
if not name then return redis.call('DEL', KEYS[1]) end
redis.call('SET', KEYS[1], mark .. '0 ', 'KEEPTTL')
return name
