// Package architecture holds no code: its test keeps the promises that
// docs/design.md makes about who may import whom, and about what the main
// program leaves out.
package architecture
