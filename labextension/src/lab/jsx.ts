/** What JSX is compiled to: a name of our own for it is shorter in the bundle, at each of some hundred places. */

import { Fragment, createElement } from "react";

export const h = createElement;
export { Fragment };
