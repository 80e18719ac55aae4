-- Finds the newest connection of a pod: of its node, at its address without the port.
CREATE INDEX pods_by_place ON pods (node, RTRIM(peer, '0123456789'), connected_at);
