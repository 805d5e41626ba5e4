// Command real runs a real Apache Kafka on this machine, from its Maven jars
// and with the machine's Java; on demand also a Kafka Connect worker with
// Debezium's PostgreSQL connector. No container is needed. Everything lies in
// one folder, .real/ of the repository:
//
//	jars/kafka, jars/connect   what Maven brought, once
//	state.json                 brokers, ports, cluster id
//	kafka-N.properties, ...    generated at each start
//	data/                      the brokers' logs; `down --wipe` removes them
//	logs/, pids/, tmp/
//	endpoints                  KAFKA=host:port[,...] and CONNECT=URL, while up
//
// A process that runs here carries the folder's name on its command line, so
// that a pid file whose number went to some other program ends nothing.
package main
