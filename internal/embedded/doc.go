// Package embedded starts the infrastructure of one machine: a PostgreSQL
// server, a Kafka broker and a Redis server, each of which tidemark dev uses
// when no URL is given for it. Nothing else in tidemark knows the difference.
//
// Each server listens on 127.0.0.1 only, keeps its port across restarts in
// its data directory, and ends with its process. A data directory has one
// user at a time (a lock that the kernel drops with the process), survives
// kill -9 and is used again.
//
//	<data dir>/lock       held while in use
//	<data dir>/port       of the last start; tried again first
//	<data dir>/password   of PostgreSQL's superuser, mode 0600
//	<data dir>/server.log PostgreSQL's own log, cut at a start above 8 MiB
//	<data dir>/data       PostgreSQL's or Kafka's own files
//	<data dir>/location   where PostgreSQL's files are when not in data; the
//	                      file owner there names the data directory
package embedded
