// Package architecture contains no code. Its tests enforce the rules of docs/development/design.md about which
// packages may import each other and which dependencies the main program must not have.
package architecture
