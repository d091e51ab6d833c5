// Package linearizability tests that API servers keep their promises about consistency while their
// processes are killed, their disks are full or slow, and their network is partitioned.
//
// Each test runs etcd and API servers in child processes. Clients send requests, and watchers follow
// all changes, while the test causes faults. Afterwards the test reads the log of every etcd member
// and compares everything that the clients have observed with it (internal/testing/history).
//
// A test consists of rounds, and each round has a dedicated namespace. So a write that a round has
// abandoned cannot change the objects of the next one.
package linearizability
