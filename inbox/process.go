package inbox

import "context"

// Process implements Processor.
func (in *Inbox[Tx]) Process(ctx context.Context, messages []Message) ([]Result, error) {
	return make([]Result, len(messages)), in.invalid
}

// Maintain implements Processor.
func (in *Inbox[Tx]) Maintain(ctx context.Context) { <-ctx.Done() }
